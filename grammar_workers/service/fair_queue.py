"""A queue in which tenants take turns, so that one client's thousand jobs do not delay another's single one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class QueueFullError(RuntimeError):
    """The tenant has too many items in the queue, or everybody together has; the message says which."""


class FairQueue(Generic[Item]):
    """First in, first out per tenant; tenants with items take turns (round robin).

    At most `tenant_capacity` items of one tenant and `capacity` altogether wait. Not thread-safe.
    """

    def __init__(self, capacity: int, tenant_capacity: int) -> None:
        self.capacity = capacity
        self.tenant_capacity = tenant_capacity
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, tenant: str, item: Item) -> None:
        """Raises QueueFullError."""
        if len(self._queues.get(tenant, ())) >= self.tenant_capacity:
            raise QueueFullError(f"{self.tenant_capacity} compilations of this client are waiting")
        if self._length >= self.capacity:
            raise QueueFullError(f"{self.capacity} compilations are waiting")
        self._queues.setdefault(tenant, deque()).append(item)
        self._length += 1

    def put_back(self, tenant: str, item: Item) -> None:
        """Put an item that was taken before everything that waits, whatever the capacity."""
        self._queues.setdefault(tenant, deque()).appendleft(item)
        self._queues.move_to_end(tenant, last=False)
        self._length += 1

    def get(self, may: Callable[[str], bool] = lambda tenant: True) -> tuple[str, Item]:
        """The next item of a tenant that `may` have a turn, which is over then; raises KeyError when there is none."""
        tenant = next(filter(may, self._queues), None)
        if tenant is None:
            raise KeyError("no tenant may have a turn")
        items = self._queues.pop(tenant)
        item = items.popleft()
        self._length -= 1
        if items:
            self._queues[tenant] = items
        return tenant, item

    def keep(self, wanted: Callable[[Item], bool]) -> list[Item]:
        """Drop what is not wanted any more; returns it."""
        dropped: list[Item] = []
        for tenant, items in list(self._queues.items()):
            kept: deque[Item] = deque()
            for item in items:
                (kept if wanted(item) else dropped).append(item)
            if kept:
                self._queues[tenant] = kept
            else:
                del self._queues[tenant]
        self._length -= len(dropped)
        return dropped
