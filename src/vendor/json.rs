//! JSON of an answer, strictly: a body that names a key twice says two things at once and proves nothing.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The body, if it is JSON that names no key twice. (serde_json alone would keep the last of two silently.)
pub fn strict(body: &[u8]) -> Option<Value> {
    serde_json::from_slice::<Strict>(body).ok().map(|strict| strict.0)
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((key, Strict(value))) = pairs.next_entry::<String, Strict>()? {
            if all.insert(key, value).is_some() {
                return Err(A::Error::custom("a key twice"));
            }
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_twice_at_any_depth_proves_nothing_and_the_rest_reads_as_usual() {
        for twice in
            [r#"{"code":1000,"code":3001}"#, r#"[{"a":{"b":1,"b":1}}]"#, r#"{"code":1,"\u0063ode":2}"#]
        {
            assert_eq!(strict(twice.as_bytes()), None, "{twice}");
        }
        for text in [r#"{"code":1000,"a":[1,-2,3.5,null,true,"x"],"b":{"code":1}}"#, "null", "[]", r#""x""#] {
            assert_eq!(strict(text.as_bytes()), serde_json::from_str(text).ok(), "{text}");
        }
        assert_eq!(strict(b"{"), None);
    }
}
