"""Runs a supervisor as `postroom work` does, with everything on the command line as JSON, and prints its report."""

import json
import sys

import msgspec

from postroom.consumers import Supervisor, WorkerSettings
from postroom.consumers.loading import load_jobs

options = json.loads(sys.argv[1])
settings = msgspec.convert(options.pop("settings"), WorkerSettings)
report = Supervisor(jobs=load_jobs(options["app"]), settings=settings, **options).run()
sys.stdout.write(msgspec.json.encode(report).decode())
