"""A performance model of on-demand reads for hardware that is not here: CXL and RDMA. Pure.

`links` is what moving bytes costs, `observed` holds it against our own measurements, `serving` is
many clients before one decoding group, `paper` is SAC's experiment in it, `constants` has every
number from outside with its source. What it says of CXL and RDMA is simulated, never measured.
"""

from moonpool.sparse.model.constants import CONSTANTS, Constant
from moonpool.sparse.model.links import LINKS, Link, Prefix, first_step, link_checks
from moonpool.sparse.model.observed import ERROR_MAX, Validation, validate
from moonpool.sparse.model.serving import Load, Served, Side, serve

__all__ = [
    "CONSTANTS",
    "Constant",
    "ERROR_MAX",
    "LINKS",
    "Link",
    "Load",
    "Prefix",
    "Served",
    "Side",
    "Validation",
    "first_step",
    "link_checks",
    "serve",
    "validate",
]
