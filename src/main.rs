//! The program: parse, run, exit code.

fn main() {
    std::process::exit(onceward::cli::main());
}
