"""A predictor for tiny bundles whose answers tell which positions each query really saw.

K of a row is its position + 1 (as the rope rows tell), V its token + 1, or what the chunk before
made of it. A chunk adds up the keys that its mask leaves visible: one key too many, too few, twice
or stale, and the sum is another one. All numbers are whole and exact in fp32.
"""

import numpy as np
from tiny_bundle import CHUNKS, FILL, TAP_SCALE, VOCABULARY, WINDOW

MODULUS = 8191


def mix(keys, values):
    """What a query makes of the keys that it sees."""
    return (sum(31 * int(k) + 7 * int(v) for k, v in zip(keys, values, strict=True))) % MODULUS


def truth(tokens):
    """(near, far) for every position by the definition, without any cache."""
    near = [
        mix(range(first + 1, p + 2), [t + 1 for t in tokens[first : p + 1]])
        for p in range(len(tokens))
        for first in [max(0, p - WINDOW + 1)]
    ]
    far = [mix(range(1, p + 2), near[: p + 1]) for p in range(len(tokens))]
    return list(zip(near, far, strict=True))


class Reader:
    """Computes each step exactly from the features that it is given, and from its own states."""

    wide = False
    letters = VOCABULARY  # how many tokens it ever says

    def __init__(self):
        self.seen = []  # of each call of `near`: each row's visible (position, token)
        self.states = {}

    def begin(self):
        self.states = {}
        return self

    def read_state(self, package, state):
        return self.states[package, state].copy()

    def write_state(self, package, state, value):
        assert isinstance(value, np.ndarray)
        self.states[package, state] = value.copy()

    def predict(self, step, inputs, probes):
        x, outputs = None, {}
        for chunk in CHUNKS:
            if f"{chunk}_mask" not in inputs:
                continue
            if f"{chunk}_x" in inputs:
                x = inputs[f"{chunk}_x"][0, :, 0, :] / 0.5  # the source's or the value's scale
            sums = self._chunk(step, chunk, inputs, x, outputs)
            x = np.stack([sums, x[0]])
            if chunk == "near":
                y = x[None, :, None].astype(np.float32)
                outputs |= {"near_y": y * 0.5, "tap": y * TAP_SCALE}
            else:
                outputs |= self._head(inputs, x[::-1])
        wanted = {one.feature for one in step.outputs} | set(probes)
        return {name: value for name, value in outputs.items() if name in wanted}

    def _chunk(self, step, chunk, inputs, x, outputs):
        source = next(o.source for o in step.inputs if o.feature == f"{chunk}_mask")
        turn = (inputs[f"{chunk}_cos"] - inputs[f"{chunk}_sin"])[0, 0, 0] / 2
        keys = {}
        for holds, new in (("k", turn), ("v", x[0])):
            row, whole = self._cache(step, chunk, holds, inputs)
            own = whole[row, 0, : source.slots, 0]
            handed = [o for o in step.outputs if o.feature.startswith(f"{chunk}_")]
            handed = [o for o in handed if o.sink.kind == "rows"]
            written = self._written(chunk, own.copy(), new, inputs)
            keys[holds] = written if source.keys == "cache" else np.concatenate([own, new])
            if handed:
                self._hand(handed, holds, new, outputs)
            elif f"{chunk}_{holds}" in inputs:
                whole = whole[row : row + 1].copy()
                whole[0, 0, : source.slots, 0] = written
                outputs[f"{chunk}_{holds}_new"] = whole
            else:
                own[:] = written
        return self._attend(chunk, inputs[f"{chunk}_mask"][0, 0], keys)

    def _cache(self, step, chunk, holds, inputs):
        """The tensor that holds a layer's keys or values, and the row of it."""
        if f"{chunk}_{holds}" in inputs:
            made = next(o for o in step.outputs if o.feature == f"{chunk}_{holds}_new")
            return made.sink.row, inputs[f"{chunk}_{holds}"]
        state = next(o for o in step.inputs if o.feature in {f"{chunk}_kv", "kv"})
        first = 2 * CHUNKS.index(chunk) if state.feature == "kv" else 0
        key = step.package, state.feature
        self.states.setdefault(key, np.zeros(state.shape, np.float32))
        return first + int(holds == "v"), self.states[key]

    def _written(self, chunk, own, new, inputs):
        slots = len(own)
        if f"{chunk}_slot" in inputs:
            marked = inputs[f"{chunk}_slot"][0, 0]
            return own * (1 - marked.sum(1)) + marked @ new
        if f"{chunk}_index" in inputs:
            first = int(inputs[f"{chunk}_index"][0])
            assert first + len(new) <= slots, "a slice beyond the cache"
            own[first : first + len(new)] = new
            return own
        return np.concatenate([own, new])[-slots:]

    def _hand(self, handed, holds, new, outputs):
        """The call's rows, padded with what no one may read."""
        for one in handed:
            nth = "kv".index(holds) if len(handed) == 1 else 0
            if one.shape[0] == 2 or one.feature.endswith(f"_{holds}_new"):
                made = outputs.setdefault(one.feature, np.full(one.shape, 5000, np.float32))
                made[nth, 0, :, 0] = new

    def _attend(self, chunk, mask, keys):
        k, v = keys["k"], keys["v"]
        assert set(np.unique(mask)) <= {0.0, np.float32(FILL)}
        rows = [mask[t] == 0 for t in range(len(mask))]
        if chunk == "near":
            self.seen.append([sorted(zip(k[row] - 1, v[row] - 1, strict=True)) for row in rows])
        return np.array([mix(k[row], v[row]) for row in rows])

    def _head(self, inputs, pair):
        if "last" in inputs:
            chosen = inputs["last"][0, 0, 0]
            assert sorted(chosen) == [0.0] * (len(chosen) - 1) + [1.0]
            pair = pair[:, chosen == 1]
        best = pair[1].astype(int) % self.letters
        logits = -np.abs(np.arange(VOCABULARY)[:, None] - best[None, :]).astype(np.float32)
        order = np.argsort(-logits, axis=0, kind="stable")[:5]
        return {
            "hidden_out": pair[None, :, None].astype(np.float32) * 0.5,
            "token": best[None, None, None].astype(np.int32),
            "token_logit": pair[1][None, None, None].astype(np.float32) * 0.5,
            "logits": logits[None, :, None],
            "inner_logits": logits[None, :, None],
            "ids": order[None, :, None].astype(np.int32),
            "best": np.take_along_axis(logits, order, axis=0)[None, :, None],
        }
