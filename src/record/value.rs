//! A value as an answer: what a job's work came to, as JSON.

use std::{error::Error, fmt};

use serde::{Serialize, de::DeserializeOwned};

use super::Answer;
use crate::in_words;

/// A value cannot be written as an answer, or an answer cannot be read as a value.
pub struct ValueError {
    doing: &'static str,
    source: Option<serde_json::Error>,
}

impl ValueError {
    /// Whether the answer has no body: it was too large, or could not be written, when it was stored.
    pub fn is_not_kept(&self) -> bool {
        self.source.is_none()
    }
}

impl fmt::Debug for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, None, self)
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.doing)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl Error for ValueError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn Error + 'static))
    }
}

impl Answer {
    /// 200 with this value as JSON: what [`Idempotent::run`](crate::Idempotent::run) stores of a job
    /// that came to this value, for a row of one's own.
    ///
    /// # Errors
    ///
    /// When the value cannot be written as JSON, as a map whose keys are no text.
    ///
    /// # Example: there and back
    ///
    /// ```
    /// use tower_idempotency::Answer;
    ///
    /// let answer = Answer::of_value(&("O-1", 960)).unwrap();
    /// assert_eq!(answer.body().unwrap(), r#"["O-1",960]"#);
    /// assert_eq!(answer.value::<(String, u32)>().unwrap(), ("O-1".to_owned(), 960));
    /// assert!(answer.value::<u32>().is_err());
    /// ```
    pub fn of_value(value: &(impl Serialize + ?Sized)) -> Result<Self, ValueError> {
        let doing = "the value cannot be written as JSON";
        match serde_json::to_vec(value) {
            Ok(json) => Ok(Self::json(json)),
            Err(source) => Err(ValueError { doing, source: Some(source) }),
        }
    }

    /// The value that this answer's body has as JSON.
    ///
    /// # Errors
    ///
    /// When the body was not kept, or is no such value.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, ValueError> {
        let Some(body) = self.body() else {
            return Err(ValueError { doing: "the answer was not kept", source: None });
        };
        let doing = "the answer is no such value";
        serde_json::from_slice(body).map_err(|source| ValueError { doing, source: Some(source) })
    }
}
