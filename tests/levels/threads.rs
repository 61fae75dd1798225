//! Many threads on trees with shared upper levels.

use std::sync::atomic::{AtomicU32, Ordering};

use tollgate::{Key, MemoryStore, Quota, RateLimiter};

const THREADS: usize = 8;
const CHECKS: u32 = 400;
const TENANTS: [&str; 2] = ["acme", "bolt"];

struct Counted {
    /// The admitted checks of each tenant, by this test's count.
    tenants: [u32; 2],
    /// The units in the store.
    stored: [u32; 2],
    service: u32,
}

/// Half of the threads check for each of two tenants. Each thread names the levels in another order.
fn race(tenant_limit: u32, service_limit: u32) -> Counted {
    let store = MemoryStore::new();
    let limiter = |name: &'static str, limit| {
        RateLimiter::new(store.clone(), Quota::per_hour(limit)).name(name)
    };
    let user = limiter("user", 1_000_000);
    let tenant = limiter("tenant", tenant_limit);
    let service = limiter("service", service_limit);
    let admitted = [const { AtomicU32::new(0) }; 2];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (user, tenant, service, admitted) = (&user, &tenant, &service, &admitted);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                for check in 0..CHECKS {
                    let mut levels = vec![
                        user.on(format!("{thread}:{}", check % 50)),
                        tenant.on(TENANTS[thread % 2]),
                        service.on(Key::global()),
                    ];
                    levels.rotate_left(thread % 3);
                    if thread % 4 > 1 {
                        levels.reverse();
                    }
                    let decision = runtime.block_on(RateLimiter::check_all(levels)).unwrap();
                    if decision.is_allowed() {
                        admitted[thread % 2].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let counted = Counted {
        tenants: admitted
            .each_ref()
            .map(|units| units.load(Ordering::Relaxed)),
        stored: TENANTS.map(|key| runtime.block_on(crate::used(&tenant, key))),
        service: runtime.block_on(crate::used(&service, Key::global())),
    };
    let users: u32 = (0..THREADS)
        .flat_map(|thread| (0..50).map(move |user| format!("{thread}:{user}")))
        .map(|key| runtime.block_on(crate::used(&user, key)))
        .sum();
    assert_eq!(users, counted.service);
    counted
}

#[test]
fn shared_tenants_are_admitted_exactly_their_limit() {
    let counted = race(150, 1_000_000);
    assert_eq!(counted.tenants, [150, 150]);
    assert_eq!((counted.stored, counted.service), ([150, 150], 300));
}

#[test]
fn a_shared_service_is_admitted_exactly_its_limit() {
    let counted = race(1_000_000, 333);
    assert_eq!(counted.tenants.iter().sum::<u32>(), 333);
    assert_eq!((counted.stored, counted.service), (counted.tenants, 333));
}
