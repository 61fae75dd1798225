//! Slots in flight, and held units.

crate::sound! {
    "slots":
    no_order_of_events_of_two_processes_breaks_a_promise = "two processes, one slot",
    no_repeated_message_does = "a repeated message",
    no_killed_process_does = "a killed process",
    no_step_back_of_the_clock_does = "a step back of the clock",
    lost_data_breaks_no_more_than_is_said = "lost data",
    no_order_with_two_slots_does = "two slots",
    no_message_of_two_checks_does = "two checks in a message",
    no_order_of_three_processes_does = "three processes",
    no_leases_of_different_lengths_do = "leases of different lengths",
    no_clock_of_three_ticks_a_lease_does = "three ticks a lease",
    no_clock_of_five_ticks_a_lease_does = "five ticks a lease",
    no_order_of_use_does = "two units, which are used",
    no_table_that_forgets_a_key_does = "a table that forgets a key",
    no_repeated_message_about_use_does = "use in a repeated message",
    no_killed_process_that_has_used_units_does = "use of a killed process",
    no_step_back_of_the_clock_beside_use_does = "use and a step back of the clock",
    no_message_of_two_checks_about_use_does = "use in two checks of a message",
}

#[test]
fn each_planted_fault_breaks_a_promise() {
    let expected = [
        ("NoSequence", "a released slot stays free", 5),
        ("SequenceRestarts", "a released slot stays free", 12),
        ("SecondCheckRestates", "no more permits than slots", 7),
        ("Differences", "a released slot stays free", 5),
        ("NoSingleFlight", "no more permits than slots", 5),
        ("LateReplyGrants", "no more permits than slots", 6),
        ("LossNotFinal", "no more permits than slots", 11),
        (
            "LostNotStated",
            "lost permits count until they are dropped",
            7,
        ),
        ("WholeLease", "no more permits than slots", 8),
        ("ValidFromReply", "no more permits than slots", 9),
        ("ValidWithoutReply", "no more permits than slots", 11),
        ("RefusalWritesNothing", "no more permits than slots", 12),
        ("EmptyEntryRemoved", "a released slot stays free", 5),
        (
            "NoExpiry",
            "a killed process returns its slots in a lease",
            5,
        ),
        (
            "NoClamp",
            "a killed process returns its slots in a lease",
            8,
        ),
        (
            "ClampNotWritten",
            "a killed process returns its slots in a lease",
            8,
        ),
        ("ClampToLeaseOfAsker", "a released slot stays free", 9),
        ("TrustAcknowledged", "no unit is charged twice", 9),
        ("TrustEntry", "no unit is charged twice", 8),
        ("SumGoesWithLease", "no unit is charged twice", 11),
        ("SumRestarts", "no more permits than slots", 15),
        ("UnitBeforeSum", "no more permits than slots", 10),
        (
            "RefusalChargesNothing",
            "what is acknowledged is charged",
            9,
        ),
        ("LostUseNotCounted", "what is acknowledged is charged", 5),
        ("ReplyAcknowledgesAll", "what is acknowledged is charged", 7),
        (
            "ForgetsUnacknowledged",
            "what is acknowledged is charged",
            5,
        ),
    ];
    crate::breaks("slots", &expected);
}
