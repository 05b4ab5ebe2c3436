"""What each tenant has, borrows and was refused is on the page of metrics."""

from __future__ import annotations

import re
from typing import cast

from moonpool.core.admin_section import AdminConfig
from moonpool.core.clock import ManualClock
from moonpool.dashboard.metrics import metrics_page
from moonpool.dashboard.watch import Look, Watch
from moonpool.pool import messages as m
from moonpool.pool.aio import AsyncPool
from tests.pool.tenancy.world import TenantWorld, tenant


def test_usage_by_tenant() -> None:
    world = TenantWorld(tenant("a", quota_bytes=256), tenant("b", quota_bytes=128, borrow=False))
    world.add_node(capacity=1024)
    a, b = world.visitor("a"), world.visitor("b")
    assert world.put(a, [b"k%d" % i for i in range(10)], 64) == [m.PutStatus.COMMITTED] * 10
    assert world.put(b, [b"big"], 200) == [m.PutStatus.QUOTA]
    watch = Watch(cast(AsyncPool, None), AdminConfig(), ManualClock())
    watch._looks.append(Look(0.0, world.stat(world.visitor(""))))
    watch.why_not = ""
    page = metrics_page(watch)
    found = {
        (name, owner): float(value)
        for name, owner, value in re.findall(r'(\w+)\{tenant="(\w+)"\} (\S+)', page)
    }
    wanted = {"quota_bytes": 256, "committed_bytes": 640, "borrowed_bytes": 384, "objects": 10}
    wanted |= {"admitted_bytes_total": 640, "admitted_objects_total": 10, "refused_total": 0}
    for name, value in wanted.items():
        assert found[f"moonpool_tenant_{name}", "a"] == value, name
    assert found["moonpool_tenant_committed_bytes", "b"] == 0
    assert found["moonpool_tenant_refused_total", "b"] == 1
