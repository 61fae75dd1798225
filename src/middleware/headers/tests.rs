//! Tests of the headers of each dialect, with the examples of the drafts and with another parser.

mod dialects;
mod draft_11;
mod drafts_03_to_07;
mod fixtures;
mod nested_layers;
mod parsed;
mod x_ratelimit;
