//! One limiter on the page: its operations, and what an operator enters to name one of its keys.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::{Admin, Key};

use crate::failure::Failure;
use crate::key_form::{KeyField, KeyForm};

/// How many of the keys that are refused most the page lists.
pub(crate) const TOP_REJECTED: usize = 20;

/// One limiter on the page.
pub(crate) struct Limiter {
    pub(crate) name: String,
    pub(crate) admin: Admin,
    forms: Vec<KeyForm>,
}

impl Limiter {
    /// Creates a limiter whose keys are entered in one of these forms. If there is none, an operator can enter
    /// only the stored text of a key.
    pub(crate) fn new(name: impl Into<String>, admin: Admin, forms: Vec<KeyForm>) -> Self {
        let name = name.into();
        Self { name, admin, forms }
    }
}

/// A key as the operator names it. It is in the body, because URLs end up in logs.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum KeyInput {
    /// The values of one of the forms.
    Entered { form: usize, values: Vec<String> },
    /// The key as logs, Redis and this page show it.
    Stored { value: String },
}

impl Limiter {
    /// Describes the limiter: its quotas and forms.
    pub(crate) fn describe(&self) -> Value {
        let quotas = self.admin.limiter().quotas().iter();
        let field = |field: &KeyField| json!({ "label": field.label, "example": field.example });
        let forms = self.forms.iter();
        json!({
            "name": self.name,
            "quotas": quotas.map(ToString::to_string).collect::<Vec<_>>(),
            "forms": forms
                .map(|form| form.fields.iter().map(field).collect())
                .collect::<Vec<Value>>(),
        })
    }

    /// Makes the key in the same way as requests do. An error if no request can have it.
    pub(crate) async fn key(&self, input: &KeyInput) -> Result<Key, Failure> {
        let invalid = |text: String| Failure(StatusCode::BAD_REQUEST, text);
        match input {
            KeyInput::Entered { form, values } => {
                let form = self.forms.get(*form);
                let form = form.ok_or_else(|| invalid("no such kind of key".to_owned()))?;
                form.key(values).map_err(invalid)
            }
            KeyInput::Stored { value } => {
                let key = Key::from_stored(value.trim());
                let key = key.ok_or_else(|| invalid("not a stored key".to_owned()))?;
                if self.may_have(&key) || self.is_listed(&key).await? {
                    Ok(key)
                } else {
                    Err(invalid(format!(
                        "not a key of this limiter, which counts by {}",
                        self.kinds()
                    )))
                }
            }
        }
    }

    /// Returns whether the key has one of the forms. Without forms, keys may have any text.
    fn may_have(&self, key: &Key) -> bool {
        self.forms.is_empty() || self.forms.iter().any(|form| form.may_be(key))
    }

    /// Returns whether the page lists the key, for example because it was blocked before the limiter had another
    /// extractor.
    async fn is_listed(&self, key: &Key) -> Result<bool, Failure> {
        let blocked = self.admin.blocked().await?;
        let top_rejected = self.admin.top_rejected_keys(TOP_REJECTED);
        let mut listed = blocked
            .iter()
            .map(|(key, _)| key)
            .chain(top_rejected.iter().map(|rejected| &rejected.key));
        Ok(listed.any(|listed| listed == key))
    }

    fn kinds(&self) -> String {
        let kinds = self.forms.iter().map(|form| {
            let labels: Vec<_> = form.fields.iter().map(|field| &*field.label).collect();
            match labels.is_empty() {
                true => "all requests together".to_owned(),
                false => labels.join(" and "),
            }
        });
        kinds.collect::<Vec<_>>().join(", or ")
    }
}
