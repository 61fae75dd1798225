//! Calls that wait for slots of one key.

crate::sound! {
    "slot_line":
    no_order_of_four_calls_for_a_slot_breaks_a_promise = "slots",
    no_order_of_calls_for_two_slots_does = "two slots",
    no_pause_does = "slots after a pause",
    no_pause_of_slots_and_rates_does = "slots and rates after a pause",
    no_failed_store_does = "counts of this process",
    no_failed_store_beside_a_pause_does = "counts of this process after a pause",
    no_call_that_gives_up_does = "a call that gives up",
}

#[test]
fn each_planted_fault_breaks_a_promise() {
    let expected = [
        ("SlotsHavePace", "nobody is overtaken", 11),
        ("TrialShared", "nobody is overtaken", 16),
        ("TrialNotSeen", "nobody is overtaken", 20),
        ("RefusalTakenInByCall", "nobody is overtaken", 9),
        ("QuestionIgnoresLine", "nobody is overtaken", 9),
        ("SlotsOfGoneKept", "no call waits without end", 60),
        ("OwnCountsIgnoreLine", "nobody is overtaken", 11),
        ("OwnCountsIgnoreTold", "nobody is overtaken", 17),
        ("OwnCountsForgetHeld", "no more permits than slots", 8),
        ("ReplyForgetsOwnGrants", "no more permits than slots", 9),
        ("OwnRefusalStandsLater", "nobody is overtaken", 11),
    ];
    crate::breaks("slot_line", &expected);
}
