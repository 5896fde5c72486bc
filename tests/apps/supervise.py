"""Runs a supervisor as `postroom work` does, with everything on the command line as JSON, and prints its report; a flag says whether it is ready."""

import json
import sys
import threading
import time

import msgspec
from effects import flag

from postroom.consumers import Supervisor, WorkerSettings
from postroom.consumers.loading import load_jobs


def tell(supervisor: Supervisor) -> None:
    """Have the flag `ready` there for as long as it is."""
    while True:
        if supervisor.ready():
            flag("ready").touch()
        else:
            flag("ready").unlink(missing_ok=True)
        time.sleep(0.02)


options = json.loads(sys.argv[1])
settings = msgspec.convert(options.pop("settings"), WorkerSettings)
supervisor = Supervisor(jobs=load_jobs(options["app"]), settings=settings, **options)
threading.Thread(target=tell, args=(supervisor,), daemon=True).start()
report = supervisor.run()
sys.stdout.write(msgspec.json.encode(report).decode())
