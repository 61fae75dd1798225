//! Leases of units.

crate::sound! {
    "leases":
    no_order_of_events_of_one_process_exceeds_the_limit = "one process",
    no_order_of_two_processes_does = "two processes",
    no_order_of_two_processes_for_a_unit_does = "two processes, one unit",
    no_order_of_three_processes_does = "three processes, one unit",
    no_repeated_request_does = "a repeated request",
    lost_data_admits_the_limit_once_more = "lost data",
    no_clock_of_five_ticks_a_lease_does = "a lease of five ticks",
    no_aligned_window_is_exceeded = "an aligned window",
}

#[test]
fn each_planted_fault_exceeds_the_limit() {
    let expected = [
        (
            "NoWindowExtension",
            "no span of the window exceeds the limit",
            8,
        ),
        ("WholeLease", "no span of the window exceeds the limit", 11),
        (
            "UsedFromReply",
            "no span of the window exceeds the limit",
            11,
        ),
        (
            "GrantNotCharged",
            "no span of the window exceeds the limit",
            6,
        ),
        (
            "GrantBeyondLeft",
            "no span of the window exceeds the limit",
            6,
        ),
        (
            "EndOfWindowIgnored",
            "no span of the window exceeds the limit",
            11,
        ),
        (
            "ReturnIntoLaterGrant",
            "no span of the window exceeds the limit",
            16,
        ),
        (
            "ReturnStaysUsable",
            "no span of the window exceeds the limit",
            8,
        ),
        (
            "ReturnSentAgain",
            "no span of the window exceeds the limit",
            9,
        ),
        (
            "ReturnWithoutReceipt",
            "no span of the window exceeds the limit",
            12,
        ),
    ];
    crate::breaks("leases", &expected);
}
