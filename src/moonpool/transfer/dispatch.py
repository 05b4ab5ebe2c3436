"""Which transport an op is given to, and the engine's settings as callers give them."""

from collections.abc import Mapping
from typing import Any

from moonpool.core.errors import BadConfig, TransferError, Unreachable, did_you_mean
from moonpool.core.sections import TransferConfig
from moonpool.transfer.affinity import RailPolicy, check_names, names_of
from moonpool.transfer.base import OpState, Transfer, Transport
from moonpool.transfer.explain import AnySegment, own_transport, reasons
from moonpool.transfer.op import Op
from moonpool.transfer.segment import RemoteSegment
from moonpool.transfer.topology import this_machine


def dispatch(
    transports: Mapping[str, Transport], transfer: Transfer, via: str | None, again: bool = False
) -> Op:
    """Hands the transfer to the best transport; the next one takes over what a transport
    cannot even begin. `again`: the connection was just made, so a loss is final."""
    remote = transfer.remote
    if not isinstance(remote, RemoteSegment):
        own = own_transport(remote)
        if via == "nixl" and own == "file" and via in transports:
            return transports[via].submit(transfer)
        if via not in (None, own):
            return _failed(transfer, _out_of_reach(remote, via))
        return transports[own].submit(transfer)
    peer = remote.peer
    if (refusal := peer.refusal(remote)) is not None:
        return _failed(transfer, refusal)
    if not again and not peer.alive and not peer.hung:
        return peer.submit_later(transfer, via)
    offered = peer.offers(remote)
    if peer.hung and (not offered or via in ("tcp", "nixl")):
        return _failed(transfer, Unreachable(f"{peer.address} hangs: {peer.hung}"))
    if via is not None and via not in offered:
        return _failed(transfer, _out_of_reach(remote, via))
    for name in offered if via is None else (via,):
        rails = peer.rails
        if name == "tcp" and (transfer.priority or rails.many) and rails.takes(transfer):
            op = rails.submit(transfer)
        else:
            op = transports[name].submit(transfer)
        if op.last_state is not OpState.FAILED or not isinstance(op.error, Unreachable):
            break
    return op


def configured(config: TransferConfig | None, options: dict[str, Any]) -> TransferConfig:
    """The settings of `Engine(config)` or `Engine(**options)`. Raises BadConfig."""
    if config is not None and options:
        raise BadConfig("give a TransferConfig or options by name, not both")
    known = [setting.name for setting in TransferConfig.settings()]
    for name in options:
        if name not in known:
            raise BadConfig(f"unknown engine option '{name}'.{did_you_mean(name, known)}")
    return config if config is not None else TransferConfig(**options)


def policy_of(config: TransferConfig) -> RailPolicy:
    """Which rails may be used. Raises BadConfig for names that mean nothing here."""
    policy = RailPolicy(config.rail_policy, names_of(config.rail_pin), names_of(config.rail_forbid))
    if policy.pin or policy.forbid:
        check_names(policy, [nic.name for nic in this_machine().nics])
    return policy


def _out_of_reach(remote: AnySegment, via: str | None) -> TransferError:
    why = reasons(remote).get(str(via), "the segment is memory")
    return TransferError(f"{via} cannot reach {remote!r}: {why}")


def _failed(transfer: Transfer, error: TransferError) -> Op:
    op = Op(transfer, "none")
    op.settle(OpState.FAILED, error=error)
    return op
