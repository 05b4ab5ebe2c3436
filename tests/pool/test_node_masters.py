"""One node, several masters: whom it hears."""

from __future__ import annotations

from moonpool.pool import messages as m
from moonpool.pool.node_masters import NodeMasters
from tests.pool.master_world import MasterWorld


def test_an_order_that_is_refused_is_no_sign_of_life_of_the_master_obeyed() -> None:
    """A master of an older term asks again and again; the one that is obeyed says nothing more."""
    node = MasterWorld().add_node()
    term = node.agent.term
    masters = NodeMasters(node.machine)
    for link in (1, 2):
        masters.connected(link, 0.0)
    adopt = m.Adopt(0, term + 1, b"i" * 16, 1000, 0)
    assert masters.handle(1, adopt, 1.0, 1) and masters.obeyed == 1
    late = m.Adopt(0, term - 1, b"j" * 16, 1000, 0)
    assert masters.handle(2, late, 9.0, 9) == []
    assert masters.obeyed == 1 and node.machine.heard_at == 1.0
    masters.handle(1, late, 9.5, 9)  # its own word, whatever it says, is one
    assert node.machine.heard_at == 9.5
