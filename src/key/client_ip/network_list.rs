//! The networks that `behind` takes: a text, or a list of texts.

/// The networks of trusted proxies, for [`ClientIp::behind`](super::ClientIp::behind): one text, or a list of them.
///
/// - Any text (`&str`, `String`, `&String`): one network, or several with commas between them.
/// - Anything that iterates over texts: an array, a slice, a `Vec`, `text.split(' ')`.
///
/// `Form` is `str` for a text and `[String]` for a list. The compiler infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a text with networks, nor a list of such texts",
    label = "expected a text like `\"10.0.0.0/8\"`, or a list of them",
    note = "for values of another type, such as `IpNet`, pass their texts: \
            `.behind(networks.iter().map(|network| network.to_string()))`"
)]
pub trait NetworkList<Form: ?Sized> {
    /// Calls `network` with the text of each network.
    fn for_each_network(self, network: impl FnMut(&str));
}

impl<T: AsRef<str>> NetworkList<str> for T {
    fn for_each_network(self, network: impl FnMut(&str)) {
        self.as_ref().split(',').for_each(network);
    }
}

impl<I> NetworkList<[String]> for I
where
    I: IntoIterator<Item: AsRef<str>>,
{
    fn for_each_network(self, mut network: impl FnMut(&str)) {
        for text in self {
            network(text.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<Form: ?Sized>(networks: impl NetworkList<Form>) -> Vec<String> {
        let mut texts = Vec::new();
        networks.for_each_network(|text| texts.push(text.to_owned()));
        texts
    }

    #[test]
    fn networks_are_a_text_with_commas_or_a_list() {
        let both = ["10.0.0.0/8", "fd00::/8"];
        assert_eq!(texts("10.0.0.0/8"), ["10.0.0.0/8"]);
        assert_eq!(texts("10.0.0.0/8,fd00::/8"), both);
        let text = String::from("10.0.0.0/8,fd00::/8");
        assert_eq!(texts(&text), both);
        assert_eq!(texts(text), both);
        assert_eq!(texts(both), both);
        assert_eq!(texts(both.as_slice()), both);
        let list = both.map(String::from).to_vec();
        assert_eq!(texts(&list), both);
        assert_eq!(texts(list), both);
        assert_eq!(texts("10.0.0.0/8 fd00::/8".split(' ')), both);
        assert_eq!(texts([""; 0]), [""; 0]);
        assert_eq!(texts(""), [""]);
    }
}
