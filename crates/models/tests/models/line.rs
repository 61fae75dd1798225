//! One line for each key.

crate::sound! {
    "line":
    no_order_of_events_of_four_calls_breaks_a_promise = "four calls",
    no_order_of_calls_for_two_keys_does = "four calls for two keys",
    no_call_for_both_keys_beside_calls_for_each_does = "calls for each key and for both",
    no_key_that_never_has_room_does = "a key that never has room",
    no_call_that_gives_up_does = "a call that gives up",
    no_task_that_is_not_polled_does = "a task that is not polled",
    no_other_process_does = "other processes",
    no_slow_reply_does = "slow replies",
}

#[test]
fn each_planted_fault_breaks_a_promise() {
    let expected = [
        ("LaterOvertakes", "nobody is overtaken", 9),
        ("NewcomerAsks", "nobody is overtaken", 7),
        ("PlaceLost", "nobody is overtaken", 13),
        ("RoomNotReduced", "nobody is overtaken", 16),
        ("IdleBlocks", "no call waits without end", 45),
        ("AskingIsIdle", "nobody is overtaken", 21),
        ("GoneBlocks", "no call waits without end", 45),
        ("StandsEverywhere", "no call waits without end", 73),
        ("EndlessPatience", "nobody is overtaken", 16),
    ];
    crate::breaks("line", &expected);
}
