//! Limiters without HTTP.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use tollgate::{
    Acquired, ErrorKind, FailurePolicy, Key, MemoryStore, Plan, Quota, RateLimitLayer, RateLimiter,
    Source, key,
};
use uuid::Uuid;

use super::Done;

fn limiter() -> RateLimiter {
    RateLimiter::new(MemoryStore::new(), Quota::per_minute(100))
}

#[tokio::test]
async fn a_check_by_text() -> Done {
    let limiter = limiter().name("api");
    let decision = limiter.check("ada").await?;
    assert!(decision.is_allowed());
    assert_eq!(
        (decision.limit(), decision.used(), decision.remaining()),
        (100, 1, 99)
    );
    assert_eq!(decision.retry_after(), None);
    assert_eq!(decision.source(), Source::Memory);
    Ok(())
}

#[tokio::test]
async fn a_check_by_a_string_of_a_request() -> Done {
    let user = String::from("ada");
    let _ = limiter().check(&user).await?;
    let _ = limiter().check(user).await?;
    Ok(())
}

#[tokio::test]
async fn a_check_by_number() -> Done {
    let user_id = 42_i64;
    let _ = limiter().check(user_id).await?;
    let _ = limiter().check(42_u64).await?;
    let _ = limiter().check(42).await?;
    Ok(())
}

#[tokio::test]
async fn a_check_by_uuid() -> Done {
    let user_id = Uuid::from_u128(7);
    let _ = limiter().check(Key::from_display(user_id)).await?;
    let _ = limiter().check(user_id.as_u128()).await?;
    let _ = limiter().check(user_id.to_string()).await?;
    Ok(())
}

#[tokio::test]
async fn a_check_by_a_pair() -> Done {
    let _ = limiter().check(("acme", 42)).await?;
    let _ = limiter().check((Key::from("acme"), "ada")).await?;
    Ok(())
}

#[tokio::test]
async fn a_check_by_address() -> Done {
    let limiter = limiter();
    let address: IpAddr = "192.0.2.1".parse()?;
    let _ = limiter.check(address).await?;
    // The layer counts the same key.
    assert_eq!(limiter.peek(key::peer_ip().of(address)).await?.used(), 1);
    Ok(())
}

#[tokio::test]
async fn a_check_by_format() -> Done {
    let (tenant, job) = ("acme", 7);
    let _ = limiter().check(format!("{tenant}:{job}")).await?;
    let _ = limiter().check(&format!("{tenant}:{job}")).await?;
    Ok(())
}

#[tokio::test]
async fn a_cost() -> Done {
    let decision = limiter().check_n("ada", 30).await?;
    assert_eq!(decision.cost(), 30);
    let error = limiter().check_n("ada", 101).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
    Ok(())
}

#[tokio::test]
async fn a_job_that_waits() -> Done {
    let decision = limiter()
        .until_ready("ada", 1, Duration::from_secs(30))
        .await?;
    assert!(decision.is_allowed());
    Ok(())
}

#[tokio::test]
async fn a_job_that_waits_for_a_permit() -> Done {
    let exports = RateLimiter::new(MemoryStore::new(), Quota::in_flight(5)).name("exports");
    let permit = exports.acquire("x").await?;
    assert_eq!(permit.decision().remaining(), 4);
    let task = tokio::spawn(async move { permit.release().await });
    task.await??;
    let _permit = exports.acquire(42_u64).await?;
    Ok(())
}

#[tokio::test]
async fn a_permit_if_one_is_free() -> Done {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
    let Acquired::Permit(_permit) = limiter.try_acquire("x").await? else {
        return Err("nothing runs yet".into());
    };
    match limiter.try_acquire("x").await? {
        Acquired::Permit(_) => return Err("one is running".into()),
        Acquired::Refused(decision) => assert_eq!(decision.used(), 1),
    }
    Ok(())
}

#[tokio::test]
async fn a_permit_that_is_waited_for_as_long_as_its_work_may_be_late() -> Done {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1))
        .max_wait(Duration::from_millis(20))
        .queue(100);
    let permit = limiter.acquire("x").await?;
    let error = limiter.acquire("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MaxWait);
    tokio::select! {
        () = permit.lost() => return Err("memory loses nothing".into()),
        () = tokio::time::sleep(Duration::from_millis(1)) => {}
    }
    Ok(())
}

#[tokio::test]
async fn a_permit_of_a_user_and_a_tenant() -> Done {
    let store = MemoryStore::new();
    let user = RateLimiter::new(store.clone(), Quota::in_flight(5)).name("user");
    let tenant = RateLimiter::new(store, Quota::in_flight(20)).name("tenant");
    let permit = RateLimiter::acquire_all([user.on("ada"), tenant.on("acme").slots(2)]).await?;
    assert_eq!(permit.decision().levels().len(), 2);
    let other = RateLimiter::try_acquire_all([user.on("bob"), tenant.on("acme")]).await?;
    assert!(matches!(other, Acquired::Permit(_)));
    Ok(())
}

#[tokio::test]
async fn a_check_that_would_hold_no_slot_names_the_call_that_does() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(5));
    let error = limiter.check("x").await.unwrap_err();
    assert!(error.to_string().contains("`acquire`"), "{error}");
}

#[tokio::test]
async fn a_charge_is_given_back_or_settled() -> Done {
    let limiter = limiter();
    let mut decision = limiter.check_n("ada", 30).await?;
    limiter.refund(&mut decision, 10).await?;
    limiter.settle(decision, 5).await?;
    assert_eq!(limiter.peek("ada").await?.used(), 5);
    Ok(())
}

#[tokio::test]
async fn several_keys_in_one_check() -> Done {
    let store = MemoryStore::new();
    let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    let tenant = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("tenant");
    let service = RateLimiter::new(store, Quota::per_second(20_000)).name("service");
    let acme = String::from("acme");
    let mut decision = RateLimiter::check_all([
        user.on(42_u64),
        tenant.on(&acme).cost(900).quotas(Quota::per_minute(5_000)),
        service.on(Key::global()),
    ])
    .await?;
    assert!(decision.is_allowed());
    tenant.settle_level(&mut decision, 100).await?;
    Ok(())
}

/// The guide: plans are lists of quotas of one limiter, and used units stay used when the plan changes.
#[tokio::test]
async fn a_plan_in_the_check_keeps_the_count_and_a_limiter_for_each_plan_does_not() -> Done {
    let store = MemoryStore::new();
    let (free, team) = (Quota::per_minute(5), Quota::per_minute(50));
    let tenants = RateLimiter::new(store.clone(), free.clone()).name("tenants");
    let remaining = async |plan: &Quota| -> Result<u32, tollgate::Error> {
        let decision = RateLimiter::check_all([tenants.on("acme").quotas(plan.clone())]).await?;
        Ok(decision.remaining())
    };
    assert_eq!(remaining(&free).await?, 4);
    assert_eq!(remaining(&team).await?, 48);
    for (name, plan) in [("free", free), ("team", team)] {
        let limiter = RateLimiter::new(store.clone(), plan.clone()).name(name);
        assert_eq!(limiter.check("acme").await?.remaining(), plan.limit() - 1);
    }
    Ok(())
}

#[tokio::test]
async fn several_keys_of_a_vec() -> Done {
    let limiter = limiter();
    let users = ["ada", "bob"].map(String::from).to_vec();
    let levels: Vec<_> = users.iter().map(|user| limiter.on(user)).collect();
    let max_wait = Duration::from_secs(1);
    let decision = RateLimiter::until_all_ready(levels, max_wait).await?;
    assert_eq!(decision.levels().len(), 2);
    Ok(())
}

#[tokio::test]
async fn in_a_spawned_task() -> Done {
    let limiter = limiter();
    let task = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check("ada").await }
    });
    assert!(task.await??.is_allowed());
    Ok(())
}

#[tokio::test]
async fn in_a_struct_of_the_application() -> Done {
    #[derive(Clone, Debug)]
    struct Upstream {
        limiter: RateLimiter,
    }

    impl Upstream {
        async fn call(&self, user: &str) -> Result<&'static str, tollgate::Error> {
            match self.limiter.check(user).await?.retry_after() {
                None => Ok("called"),
                Some(_) => Ok("later"),
            }
        }
    }

    let upstream = Upstream { limiter: limiter() };
    assert_eq!(upstream.call("ada").await?, "called");
    Ok(())
}

#[tokio::test]
async fn one_limiter_of_a_layer_and_jobs() -> Done {
    let limiter = limiter().name("api");
    let layer = RateLimitLayer::from(limiter.clone());
    let _ = layer.limiter().check("ada").await?;
    assert_eq!(limiter.peek("ada").await?.used(), 1);
    Ok(())
}

#[tokio::test]
async fn an_admin_page() -> Done {
    let limiter = limiter().track_refused(NonZeroUsize::new(100).ok_or("zero")?);
    let admin = limiter.admin();
    admin.block("ada", Duration::from_secs(60)).await?;
    assert!(!limiter.check("ada").await?.is_allowed());
    assert_eq!(admin.blocked().await?.len(), 1);
    assert!(admin.peek("ada").await?.blocked_for.is_some());
    admin.unblock("ada").await?;
    let _ = limiter.check_n("ada", 3).await?;
    admin.credit("ada", 1).await?;
    admin.reset("ada").await?;
    limiter.reset(42_u64).await?;
    assert!(admin.busiest_refused(10).len() <= 1);
    let gold = limiter.admin().quotas(Quota::per_minute(1_000));
    assert_eq!(gold.peek("ada").await?.view.limit(), 1_000);
    assert_eq!(gold.limiter().quotas().len(), 1);
    Ok(())
}

#[tokio::test]
async fn names_leases_and_policies() -> Done {
    let name = format!("{}-api", "shop");
    let limiter = limiter()
        .name(&name)
        .lease(Duration::from_millis(50))
        .on_failure(FailurePolicy::closed());
    let limiter = limiter.name(name).try_lease(Duration::from_millis(20))?;
    let _ = limiter.check("ada").await?;
    limiter.release().await?;
    Ok(())
}

#[test]
fn plans_of_a_match() {
    fn plan_of(tier: &str) -> Plan {
        match tier {
            "staff" => Plan::Exempt,
            "gold" => Plan::Quotas(Quota::per_minute(1_000).into()),
            _ => Plan::Default,
        }
    }
    assert_eq!(plan_of("staff"), Plan::Exempt);
}
