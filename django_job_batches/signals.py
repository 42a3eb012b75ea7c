"""Sent after the commit, robustly, in the process that made the change.

``batch_dispatched``, ``batch_started``, ``batch_progressed``, ``batch_finished`` and ``batch_cancelled`` are sent by
``Batch`` with ``batch``; ``job_failed`` is sent by ``BatchJob`` with ``job`` once its last attempt has failed.
"""

from __future__ import annotations

from django.dispatch import Signal

batch_dispatched = Signal()
batch_started = Signal()
batch_progressed = Signal()
batch_finished = Signal()
batch_cancelled = Signal()
job_failed = Signal()
