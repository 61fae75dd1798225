"""What urllib3 makes of a limit: asks a URL twice, and says what came of it as JSON.

`Retry` decides by itself whether to ask again, and after how long.
"""

import json
import sys
import time

import urllib3

url = sys.argv[1]
pool = urllib3.PoolManager(retries=urllib3.Retry(total=3))
answers = []
for _ in range(2):
    begin = time.monotonic()
    answer = pool.request("GET", url)
    answers.append(
        {
            "status": answer.status,
            "seconds": time.monotonic() - begin,
            "history": [attempt.status for attempt in answer.retries.history],
        }
    )
print(json.dumps({"urllib3": urllib3.__version__, "answers": answers}))
