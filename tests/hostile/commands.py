"""Each command of the project in `conftest`, with its arguments, and what it writes."""

_SETTINGS = ["--params", "params.yaml", "--metrics", "metrics.json"]
_TEXTS = ["--general", "task", "--domain", "task"]
_STAGE = ["--work", "work", *_SETTINGS]
_TRAINING = ["--curves", "curves", *_STAGE]
COMMANDS: dict[str, list[str]] = {
    "corpus": ["corpus", "corpus", *_STAGE],
    "tokenize": ["tokenize", "corpus", "general", "shards", *_STAGE],
    "vocab": ["vocab", "task", "words", *_STAGE],
    "pretrain": ["pretrain", "task", "vocab", "trained", *_TRAINING],
    "finetune": ["finetune", "model", "task", "task", "tuned", *_TRAINING],
    "features": ["features", "task", "model", "vectors", *_STAGE],
    "register": ["register", "model", "store", "version.json", *_TEXTS, *_SETTINGS],
    "embed": ["embed", "model", "--input", "in.txt", "--output", "out.npz"],
    "perplexity": ["perplexity", "model", "--input", "in.txt"],
    "neighbors": ["neighbors", "store", "[a] gift", "--model", "model"],
    "verify": ["verify", "store"],
    "export": ["export", "model", "options.json", "weights.hdf5"],
    "dump": ["dump", "store", "dump.parquet"],
}
