//! The headers of each dialect, by the examples of the drafts, and as other parsers read them.

mod dialects;
mod draft_11;
mod drafts_03_to_07;
mod fixtures;
mod nested_layers;
mod parsed;
mod x_ratelimit;
