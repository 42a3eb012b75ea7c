"""Descriptions of jobs, chains and batches. Nothing here touches a database or Redis."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from django_job_batches.arguments import arguments, plain
from django_job_batches.options import (
    Allowance,
    Options,
    checked_allowance,
    checked_label,
    checked_queue,
    checked_user,
    given_options,
)

if TYPE_CHECKING:
    from django_job_batches.models import Batch

MAX_NAME = 255
NO_OPTIONS = Options()
NONE_MAY_FAIL = Allowance()


@dataclass(frozen=True)
class JobDescription:
    """What to run: made by ``job_of()``."""

    func: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    _options: Options = NO_OPTIONS

    def options(
        self,
        *,
        queue_name: str | None = None,
        timeout: int | timedelta | None = None,
        retry: Any = None,
        at_front: bool | None = None,
        description: str | None = None,
        atomic: bool | None = None,
        on_lost: str | None = None,
        run_after: datetime | timedelta | None = None,
        keep_result: bool | None = None,
    ) -> JobDescription:
        """A copy with these options; None leaves an option as it was.

        ``timeout``: seconds, -1 for no limit. ``retry``: an ``rq.Retry`` or the number of retries. ``run_after``: an
        aware datetime, or a timedelta from the dispatch on. ``on_lost``: "fail" or "retry". Raises ``TypeError`` or
        ``ValueError`` for a value that cannot work.
        """
        changes = given_options(
            queue_name=queue_name,
            timeout=timeout,
            retry=retry,
            at_front=at_front,
            description=description,
            atomic=atomic,
            on_lost=on_lost,
            run_after=run_after,
            keep_result=keep_result,
        )
        return replace(self, _options=replace(self._options, **changes))


@dataclass(frozen=True)
class ChainDescription:
    """Links that run one after the other: made by ``chain()``."""

    links: tuple[JobDescription | BatchDescription, ...]


@dataclass(frozen=True)
class BatchDescription:
    """A batch that can be dispatched, nested or used as a callback: made by ``batch_of()``."""

    items: Iterable[Any]
    name: str = ""
    on_success: tuple[JobDescription | BatchDescription, ...] = ()
    on_failure: tuple[JobDescription | BatchDescription, ...] = ()
    on_finish: tuple[JobDescription | BatchDescription, ...] = ()
    allowance: Allowance = NONE_MAY_FAIL
    queue_name: str | None = None
    key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    created_by: Any = None

    def dispatch(self, using: str | None = None) -> Batch:
        """Write the batch (on the database alias ``using``), enqueue its jobs after the commit, return it.

        Raises ``DuplicateBatch`` when an unfinished batch has the same key. Whatever the iterable of items raises
        half-way is raised again, with the failed batch as its ``batch``; inside ``atomic()`` everything rolls back.
        """
        from django_job_batches.dispatching import dispatch

        return dispatch(self, using=using)

    async def adispatch(self, using: str | None = None) -> Batch:
        """``dispatch()`` for asynchronous callers."""
        from asgiref.sync import sync_to_async

        return await sync_to_async(self.dispatch)(using=using)


def job_of(func: Any, /, *args: Any, **kwargs: Any) -> JobDescription:
    """Describe a job: ``func(*args, **kwargs)``, run by a worker.

    ``func`` is a module-level function, ``async def`` too, its dotted path, or a Django Task. The arguments are JSON.
    Raises ``ValueError`` for a function that a worker could not import, ``TypeError`` for other things and for
    arguments that JSON cannot hold.
    """
    path = _path(func)
    plain_args, plain_kwargs = arguments(path, args, kwargs)
    return JobDescription(path, plain_args, plain_kwargs, _task_options(func))


def chain(*links: Any) -> ChainDescription:
    """Jobs and batches that run one after the other; when one fails or is cancelled, the rest is cancelled."""
    flat: list[JobDescription | BatchDescription] = []
    for number, link in enumerate(links, 1):
        item = as_item(link, f"link {number} of chain()")
        flat.extend(item.links if isinstance(item, ChainDescription) else (item,))
    return ChainDescription(tuple(flat))


def batch_of(
    items: Iterable[Any],
    *,
    name: str = "",
    on_success: Any = None,
    on_failure: Any = None,
    on_finish: Any = None,
    allow_failures: int | float = 0,
    queue_name: str | None = None,
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    created_by: Any = None,
) -> BatchDescription:
    """Describe a batch of jobs, chains and batches; nothing is written before ``dispatch()``.

    ``items``: any iterable, a generator too. Callbacks: a job, a batch, or a list of them. ``allow_failures``: how
    many items may fail, a share of them between 0 and 1, or True for any number. ``key``: at most one unfinished
    batch has it. ``metadata``: JSON of your own. ``created_by``: a saved user. Raises ``TypeError`` or ``ValueError``
    for anything that cannot work, as far as it can be seen before the items are iterated.
    """
    return BatchDescription(
        items=as_items(items, "batch_of()"),
        name=_name(name, "name"),
        on_success=_callbacks(on_success, "on_success"),
        on_failure=_callbacks(on_failure, "on_failure"),
        on_finish=_callbacks(on_finish, "on_finish"),
        allowance=checked_allowance(allow_failures),
        queue_name=checked_queue(queue_name),
        key=None if key is None else _key(key),
        metadata=_metadata(metadata),
        created_by=checked_user(created_by, "created_by"),
    )


def as_item(value: Any, where: str) -> JobDescription | ChainDescription | BatchDescription:
    """``value`` as an item; a bare function or Task stands for ``job_of()`` of it. ``TypeError`` for other things."""
    if isinstance(value, (JobDescription, ChainDescription, BatchDescription)):
        return value
    if inspect.isfunction(value) or is_task(value):
        return job_of(value)
    raise TypeError(f"{where} is {value!r:.200}, not a job, chain or batch; write job_of(function, arguments…).")


def as_items(items: Any, where: str) -> Iterable[Any]:
    """``items`` ready to be iterated: lists are checked at once, an iterator can be used only once."""
    if isinstance(items, (JobDescription, ChainDescription, BatchDescription)) or callable(items):
        raise TypeError(f"{where} takes an iterable of items, not a single one; write [item].")
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise TypeError(f"{where} takes an iterable of jobs, chains and batches, not {type(items).__name__}.")
    if isinstance(items, (list, tuple)):
        return tuple(as_item(item, f"item {number} of {where}") for number, item in enumerate(items, 1))
    return _OneShot(items, where) if iter(items) is items else items


class _OneShot:
    """An iterator that says so when it is used a second time, instead of being empty then."""

    def __init__(self, iterator: Iterator[Any], where: str) -> None:
        self._iterator: Iterator[Any] | None = iterator
        self._where = where

    def __iter__(self) -> Iterator[Any]:
        iterator, self._iterator = self._iterator, None
        if iterator is None or (inspect.isgenerator(iterator) and iterator.gi_frame is None):
            raise ValueError(
                f"The generator passed to {self._where} has been used already, so nothing is left in it; "
                "pass a list, or make a new generator for each dispatch."
            )
        return iterator


def is_task(value: Any) -> bool:
    """Whether ``value`` is a Task of ``django.tasks`` or of the ``django_tasks`` backport."""
    for module in ("django.tasks.base", "django_tasks.base"):
        if module in sys.modules and isinstance(value, sys.modules[module].Task):
            return True
    return False


def _path(func: Any) -> str:
    if isinstance(func, str):
        return _importable(func)
    if is_task(func):
        return _importable(func.module_path)
    if inspect.isfunction(func) or inspect.isbuiltin(func):
        return _function_path(func)
    raise TypeError(
        f"job_of() takes a module-level function, its dotted path or a Django Task, not {func!r:.200}; "
        "pass the function itself, without calling it."
    )


@lru_cache(maxsize=1024)
def _function_path(func: Callable[..., Any]) -> str:
    name = getattr(func, "__qualname__", "")
    path = f"{func.__module__}.{name}"
    if "<" in name:
        raise ValueError(f"{path} is a lambda or a nested function, which no worker can import; move it to a module.")
    if func.__module__ == "__main__":
        raise ValueError(
            f"{name} lives in the script that is running, which no worker can import; move it to a module."
        )
    return _importable(path)


@lru_cache(maxsize=1024)
def _importable(path: str) -> str:
    if len(path) > MAX_NAME:
        raise ValueError(f"{path:.60}… is longer than {MAX_NAME} characters; move the function to a shorter path.")
    try:
        target = import_string(path)
    except (ImportError, ValueError, TypeError) as error:  # the last two for dots where there is no name
        raise ValueError(f"{path!r} cannot be imported ({error}); pass a module-level function or its path.") from error
    if not callable(target) and not is_task(target):
        raise ValueError(f"{path!r} is {type(target).__name__}, which cannot be called; pass the path of a function.")
    return path


def _task_options(func: Any) -> Options:
    if isinstance(func, str):
        func = import_string(func)
    if not is_task(func):
        return Options()
    return Options(
        queue_name=checked_queue(func.queue_name) if func.queue_name != "default" else None,
        at_front=True if func.priority >= 100 else None,
        run_after=func.run_after,
    )


def _callbacks(value: Any, where: str) -> tuple[JobDescription | BatchDescription, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, (list, tuple)) else [value]
    items = tuple(as_item(item, where) for item in values)
    for item in items:
        if isinstance(item, ChainDescription):
            raise TypeError(f"{where} takes jobs and batches; wrap a chain in a batch: batch_of([chain(…)]).")
    return items  # type: ignore[return-value]


def _name(value: Any, what: str) -> str:
    name = checked_label(value, what)
    if len(name) > MAX_NAME:
        raise ValueError(f"{what} has {len(name)} characters, more than {MAX_NAME}; shorten it.")
    return name


def _key(value: Any) -> str:
    key = _name(value, "key")
    if not key:
        raise ValueError("key is empty; pass None for a batch without a key.")
    return key


def _metadata(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"metadata is {value!r:.200}; pass a dict.")
    return plain(dict(value), "metadata")  # type: ignore[no-any-return]
