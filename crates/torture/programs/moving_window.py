"""The package `limits` from PyPI as a contestant: its moving window on Redis.

It runs with the interpreter that has the packages of requirements.txt.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from limits import RateLimitItemPerSecond
from limits.storage import storage_from_string
from limits.strategies import MovingWindowRateLimiter
from redis.backoff import NoBackoff
from redis.retry import Retry

# The docs say how requests follow each other, and nothing about concurrent callers: their own clocks give the times.
print("contestant limits 5.8.0 sliding window=1000 offers=redis,costs promises=edges")
sys.stdout.flush()


def set_up(limit, window, redis):
    # The client retries by default, which would charge twice.
    storage = storage_from_string(redis, retry=Retry(NoBackoff(), 0), socket_timeout=1)
    seconds = int(window) // 1_000_000
    return MovingWindowRateLimiter(storage), RateLimitItemPerSecond(int(limit), seconds)


def answer(number, contestant, key, cost):
    limiter, item = contestant
    try:
        reply = "admitted 0" if limiter.hit(item, key, cost=int(cost)) else "refused"
    except Exception as error:
        reply = f"failed {error!r}"
    # One write for each line: threads share the output.
    sys.stdout.write(f"{number} {reply}\n")
    sys.stdout.flush()


with ThreadPoolExecutor(8) as threads:
    contestant = None
    for line in sys.stdin:
        number, request, *words = line.split()
        if request == "setup":
            contestant = set_up(*words)
            print(number, "done", flush=True)
        else:
            threads.submit(answer, number, contestant, *words)
