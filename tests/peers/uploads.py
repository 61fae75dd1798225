"""Posts so many bytes to a URL 500 times on a kept-alive connection, and prints the outcomes as JSON.

`http.client` opens a new connection only after an answer that announces the end of the old one.
"""

import collections
import http.client
import json
import sys
import urllib.parse

POSTS = 500

url = urllib.parse.urlsplit(sys.argv[1])
body = b"x" * int(sys.argv[2])
connection = http.client.HTTPConnection(url.hostname, url.port)
statuses = collections.Counter()
failures = collections.Counter()
for _ in range(POSTS):
    try:
        connection.request("POST", url.path, body)
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
    except ConnectionError as error:
        failures[type(error).__name__] += 1
        connection.close()
print(json.dumps({"statuses": statuses, "failures": failures}))
