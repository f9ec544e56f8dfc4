"""Layer tables of small models of any form, for properties that hold in all of them."""

from pathlib import Path

from hypothesis import strategies as st

from topoc.dsl.model import Kind, Layer, Layers


@st.composite
def models(draw):
    """A layer table of two to six layers, some of which read the KV of an earlier one."""
    count, owners = draw(st.integers(2, 6)), []
    layers = []
    for at in range(count):
        kind = draw(st.sampled_from(Kind))
        donors = [one for one in owners if layers[one].kind is kind]
        donor = draw(st.sampled_from([None, *donors])) if donors else None
        owners += [] if donor is not None else [at]
        layers.append(
            Layer(
                kind=kind,
                window=16 if kind is Kind.SLIDING else None,
                donor=donor,
                kv_weights=donor is None,
                heads=2,
                kv_heads=1,
                head_dim=16,
                parameters=draw(st.integers(1, 4)) * 1_000_000,
            )
        )
    return Layers(
        family="any",
        config=Path("config.json"),
        layers=tuple(layers),
        hidden=64,
        vocabulary=1000,
        positions=4096,
        head_parameters=draw(st.integers(0, 3)) * 1_000_000,
        embed_parameters=64_000,
    )
