"""The 2018 model in plain numpy, one token and one step at a time: nothing of the package is used.

It reads weights by the names of the 2018 files, in float64.
"""

import numpy as np

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def characters(token):
    """50 ids: a token's first 48 bytes between the marks of a word, then padding."""
    inside = {"<S>": [BOS], "</S>": [EOS]}.get(token) or list(token.encode("utf-8"))[:48]
    ids = [BOW, *inside, EOW]
    return ids + [PAD] * (50 - len(ids))


def encode(weights, options, token, words=None):
    """The context-free vector of a token."""
    if "char_cnn" not in options:
        row = words.index(token) if token in words else words.index("<UNK>")
        return weights["embedding"][row]
    cnn = options["char_cnn"]
    embedded = weights["char_embed"][characters(token)]
    pooled = []
    for k, (width, _) in enumerate(cnn["filters"]):
        kernel = weights[f"CNN/W_cnn_{k}"][0]
        places = range(50 - width + 1)
        found = [np.einsum("we,wen->n", embedded[p : p + width], kernel) for p in places]
        x = np.max(found, 0) + weights[f"CNN/b_cnn_{k}"]
        pooled.append(np.maximum(x, 0) if cnn["activation"] == "relu" else np.tanh(x))
    x = np.concatenate(pooled)
    for k in range(cnn["n_highway"]):
        high = {name: weights[f"CNN_high_{k}/{name}"] for name in HIGHWAY}
        carry = sigmoid(x @ high["W_carry"] + high["b_carry"])
        x = carry * np.maximum(x @ high["W_transform"] + high["b_transform"], 0) + (1 - carry) * x
    if "CNN_proj/W_proj" in weights:
        x = x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]
    return x


HIGHWAY = ("W_carry", "b_carry", "W_transform", "b_transform")


def read(weights, options, direction, layer, inputs, state):
    """One LSTM over a sentence: its outputs, without the residual, and the state after it."""
    lstm = options["lstm"]
    name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
    h, c = state
    outputs = []
    for x in inputs:
        z = np.concatenate([x, h]) @ weights[f"{name}/W_0"] + weights[f"{name}/B"]
        i, j, f, o = np.split(z, 4)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
        if lstm["cell_clip"]:
            c = np.clip(c, -lstm["cell_clip"], lstm["cell_clip"])
        h = sigmoid(o) * np.tanh(c)
        if f"{name}/W_P_0" in weights:
            h = h @ weights[f"{name}/W_P_0"]
            if lstm["proj_clip"]:
                h = np.clip(h, -lstm["proj_clip"], lstm["proj_clip"])
        outputs.append(h)
    return outputs, (h, c)


def embed(weights, options, sentence, states=None, words=None):
    """All layers of a sentence with its boundaries (layers, tokens + 2, dim), and the states."""
    lstm = options["lstm"]
    zero = (np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"]))
    states = dict(states or {})
    x = [encode(weights, options, token, words) for token in ["<S>", *sentence, "</S>"]]
    layers = [np.array([np.concatenate([v, v]) for v in x])]
    inputs = [list(x), list(x)[::-1]]
    for layer in range(lstm["n_layers"]):
        for direction in (0, 1):
            key = (direction, layer)
            outputs, states[key] = read(
                weights, options, direction, layer, inputs[direction], states.get(key, zero)
            )
            if layer > 0 and lstm["use_skip_connections"]:
                outputs = [y + u for y, u in zip(outputs, inputs[direction], strict=True)]
            inputs[direction] = outputs
        layers.append(np.concatenate([np.array(inputs[0]), np.array(inputs[1])[::-1]], 1))
    return np.array(layers), states


def load(path):
    """The datasets of a weights file, in float64."""
    import h5py

    found = {}

    def visit(name, item):
        if hasattr(item, "shape"):
            found[name] = item[...].astype("float64")

    with h5py.File(path) as file:
        file.visititems(visit)
    return found
