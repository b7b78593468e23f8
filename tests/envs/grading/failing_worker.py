"""A worker for pool tests that does what each request says."""

import os
import sys
import time

print("ready", flush=True)
kept = []
for line in sys.stdin:
    request = line.strip()
    if request == "hang":
        time.sleep(60)
    elif request == "spin":
        while True:
            pass
    elif request == "die":
        os._exit(3)
    elif request == "load":
        print("loading", flush=True)
        time.sleep(1.0)
        print("loaded", flush=True)
    elif request.startswith("first "):  # hangs for the first worker that is asked
        try:
            os.close(os.open(request.removeprefix("first "), os.O_CREAT | os.O_EXCL))
            time.sleep(60)
        except FileExistsError:
            pass
    elif request.startswith("wait"):
        time.sleep(float(request.removeprefix("wait")))
    print(os.getpid(), flush=True)
