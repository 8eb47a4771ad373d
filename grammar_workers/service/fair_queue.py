"""Queue that serves tenants in rotation, so that many jobs of one tenant do not delay a job of another tenant."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class QueueFullError(RuntimeError):
    """A queue is full: it has too many items in total, or too many items of one tenant. The message says which."""


class FairQueue(Generic[Item]):
    """Queue that serves tenants in rotation (round robin), and the items of a tenant in order. Not thread-safe.

    Args:
        capacity: Maximum number of items.
        tenant_capacity: Maximum number of items of one tenant.

    Attributes:
        capacity: Maximum number of items.
        tenant_capacity: Maximum number of items of one tenant.
    """

    def __init__(self, capacity: int, tenant_capacity: int) -> None:
        self.capacity = capacity
        self.tenant_capacity = tenant_capacity
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, tenant: str, item: Item) -> None:
        """Add an item at the end of a tenant's queue.

        Args:
            tenant: Name of the tenant.
            item: Item to add.

        Raises:
            QueueFullError: The queue is full, or has too many items of the tenant.
        """
        if len(self._queues.get(tenant, ())) >= self.tenant_capacity:
            raise QueueFullError(f"{self.tenant_capacity} compilations of this client are waiting")
        if self._length >= self.capacity:
            raise QueueFullError(f"{self.capacity} compilations are waiting")
        self._queues.setdefault(tenant, deque()).append(item)
        self._length += 1

    def put_back(self, tenant: str, item: Item) -> None:
        """Insert an item at the front of the queue, so that it is returned next, even if the queue is full.

        Args:
            tenant: Tenant of the item.
            item: An item that `get` has returned.
        """
        self._queues.setdefault(tenant, deque()).appendleft(item)
        self._queues.move_to_end(tenant, last=False)
        self._length += 1

    def get(self, may: Callable[[str], bool] = lambda tenant: True) -> tuple[str, Item]:
        """Remove and return the next item. Its tenant goes to the end of the rotation.

        Args:
            may: Receives the name of a tenant, and returns whether an item of this tenant may be taken now. If not, the
                tenant is skipped.

        Returns:
            The tenant and the item.

        Raises:
            KeyError: The queue is empty, or `may` returns False for all tenants with items.
        """
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
        """Remove all items for which a function returns False. The other items keep their order.

        Args:
            wanted: Returns whether an item stays in the queue.

        Returns:
            The removed items.
        """
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
