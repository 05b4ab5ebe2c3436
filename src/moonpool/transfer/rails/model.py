"""What a rail costs, learnt from each slice that it finished."""

from moonpool.transfer.rails.base import RailCost


class CostModel:
    """a + b·blocks + c·bytes. Each measurement moves the three towards what would have been right,
    each in proportion to its share of the prior (normalised least mean squares, after Widrow and
    Hoff); a slice of the same shape is so predicted by an exponential average of its past.
    """

    def __init__(self, prior: RailCost, learn: float) -> None:
        self.cost = prior
        self.samples = 0
        self._prior = prior
        self._learn = learn

    def predict(self, blocks: int, nbytes: int) -> float:
        """Seconds that such a slice keeps the rail busy."""
        return self.cost.of(blocks, nbytes)

    def observe(self, blocks: int, nbytes: int, seconds: float, *, wholly: bool = False) -> None:
        """A slice took so long. The first one is believed wholly, later ones by `learn`."""
        self.samples += 1
        weight = 1.0 if wholly else max(self._learn, 1 / self.samples)
        inputs = (1.0, float(blocks), float(nbytes))
        scales = tuple(prior * prior for prior in self._prior)
        norm = sum(scale * x * x for scale, x in zip(scales, inputs, strict=True))
        if norm == 0.0:
            # A prior of nothing but zeros has no shares; all of it becomes the fixed cost.
            scales, norm = (1.0, 0.0, 0.0), 1.0
        step = weight * (seconds - self.predict(blocks, nbytes)) / norm
        moved = [
            max(0.0, old + step * scale * x)
            for old, scale, x in zip(self.cost, scales, inputs, strict=True)
        ]
        self.cost = RailCost(*moved)
