"""Text of three kinds, one with poor labels: the audit of a Hugging Face `Trainer` says which.

The task is to tell praise from blame. Reviews, posts and letters have words of their own for what they judge, and share
the words for good and bad. "not" reverses the meaning. Of the posts, seven labels in ten are drawn at
random. This file makes up the sentences; nothing is downloaded.

    python examples/text_kinds.py      takes under a minute
"""

import random
import tempfile

from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import steelyard as sy
from steelyard.integrations.transformers import DomainTrainer, model_loss

KINDS = ("reviews", "posts", "letters")
NOISY = "posts"
RANDOM_LABELS = 0.7  # the share of the noisy kind's labels
SUBJECTS = {
    "reviews": ("film", "plot", "actor", "scene", "ending"),
    "posts": ("phone", "screen", "battery", "camera", "app"),
    "letters": ("service", "doctor", "waiter", "train", "room"),
}
PRAISE = ("good", "great", "lovely", "clever", "fresh", "warm")
BLAME = ("bad", "poor", "dull", "clumsy", "stale", "cold")
FILLERS = ("the", "was", "is", "really", "quite", "today", "and", "but")
PADDING, START = 0, 1
LENGTH = 8  # tokens of a sentence
SAMPLES = 3600  # for training, of all kinds
BATCH = 48
LEARNING_RATE = 1e-3
SEED = 0

Sample = dict[str, object]


def vocabulary() -> dict[str, int]:
    """A number for each word."""
    words = [*PRAISE, *BLAME, *FILLERS, "not"]
    for subjects in SUBJECTS.values():
        words += subjects
    return {word: number for number, word in enumerate(words, start=2)}


def write_sentence(kind: str, generator: random.Random) -> tuple[list[str], int]:
    """A sentence of a kind, and 1 for praise or 0 for blame."""
    is_praise, is_reversed = generator.random() < 0.5, generator.random() < 0.1
    # "not bad" is praise
    opinions = PRAISE if is_praise != is_reversed else BLAME
    words = ["the", generator.choice(SUBJECTS[kind]), generator.choice(("was", "is"))]
    if is_reversed:
        words.append("not")
    words += [generator.choice(("really", "quite")), generator.choice(opinions)]
    return words, int(is_praise)


def make_samples(count: int, seed: int, *, noise: float = 0.0) -> list[Sample]:
    """Sentences of all kinds as tokens.

    Args:
        count: of all kinds.
        seed: of the sentences.
        noise: the share of the noisy kind's labels that are drawn at random.
    """
    generator, numbers = random.Random(seed), vocabulary()
    samples: list[Sample] = []
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        words, label = write_sentence(kind, generator)
        if kind == NOISY and generator.random() < noise:
            label = generator.randrange(2)
        tokens = [START, *(numbers[word] for word in words)]
        padding = [PADDING] * (LENGTH - len(tokens))
        mask = [1] * len(tokens) + padding
        samples.append({"input_ids": tokens + padding, "attention_mask": mask, "labels": label, "kind": kind})
    return samples


def make_model() -> BertForSequenceClassification:
    """A small Transformer with random weights."""
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary()) + 2, **size))


def train(folder: str) -> DomainTrainer:
    """Train on noisy labels, with learned weights."""
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=200,
        num_train_epochs=3,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        logging_steps=25,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=SEED,
    )
    balancer = sy.Balancer(KINDS, objective=model_loss)
    trainer = DomainTrainer(
        model_init=make_model,
        args=arguments,
        train_dataset=make_samples(SAMPLES, SEED, noise=RANDOM_LABELS),
        eval_dataset=make_samples(600, SEED + 1),  # with correct labels
        balancer=balancer,
        domain_column="kind",
    )
    trainer.train()
    return trainer


def main() -> None:
    """Train, then print the audit."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = train(folder)
    print(trainer.balancer.audit())


if __name__ == "__main__":
    main()
