"""Calls a service of gRPC twice, and writes what came of it as JSON.

grpcio decides on its own whether it calls again, and after how long. Arguments: the address, and whether the
channel has a retry policy ("policy" or "plain").
"""

import json
import sys
import time

import grpc

address, kind = sys.argv[1:]
retries = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
}
config = {"methodConfig": [{"name": [{}], "retryPolicy": retries}]}
options = [("grpc.service_config", json.dumps(config))] if kind == "policy" else []
answers = []
with grpc.insecure_channel(address, options=options) as channel:
    # Without a serializer, messages are bytes: an empty HealthCheckRequest is none.
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    for _ in range(2):
        begin = time.monotonic()
        try:
            check(b"", timeout=30)
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
        answers.append({"code": code, "seconds": time.monotonic() - begin})
print(json.dumps(answers))
