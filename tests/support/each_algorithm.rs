//! Tests that are repeated with each algorithm.

/// Makes a test of each algorithm, which passes the algorithm to a function.
macro_rules! test_each_algorithm {
    ($test:ident, buckets: $buckets:expr) => {
        #[test]
        fn sliding_log() {
            $test(Algorithm::SlidingLog);
        }

        #[test]
        fn sorted_set_log() {
            $test(Algorithm::SortedSetLog);
        }

        #[test]
        fn sliding_counter() {
            $test(Algorithm::SlidingCounter);
        }

        #[test]
        fn sliding_buckets() {
            $test(Algorithm::SlidingBuckets($buckets));
        }

        #[test]
        fn fixed_window() {
            $test(Algorithm::FixedWindow);
        }

        #[test]
        fn gcra() {
            $test(Algorithm::Gcra);
        }
    };
}
