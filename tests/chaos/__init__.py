"""Real workers and servers, and everything that can happen to them, at random: see `python -m tests.chaos --help`.

==============  =================================================================================================
`servers.py`    the Redis and the database of a run, which belong to nobody else, so that they can be killed
`settings.py`   Django's settings in all processes of a run
`points.py`     numbered points, between the claim of a job and its last enqueue, at which processes kill themselves
`workers.py`    RQ's workers with a quicker clock
`bodies.py`     what the jobs do; each execution writes its lines into the record
`plan.py`       batches at random
`dispatcher.py` the process that dispatches them, adds to them, cancels and retries them
`faults.py`     what happens to processes and servers
`world.py`      all of it at work: processes are started again when they have died
`verdict.py`    what must be true at the end, by the rows and by the record
==============  =================================================================================================
"""
