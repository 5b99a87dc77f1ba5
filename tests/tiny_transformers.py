"""Tiny models of Transformers with random weights, and made-up tokens of three domains: nothing is downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, TrainingArguments

DOMAINS = ("news", "chat", "law")
VOCABULARY = 32
LENGTH = 12
PAD = 0


def encoder(dropout=0.0):
    """A classifier of two classes."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForSequenceClassification(config)


def language_model(dropout=0.0):
    """A causal language model."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=LENGTH,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=PAD,
    )
    return GPT2LMHeadModel(config)


def labelled(count, *, seed=0):
    """Samples for the classifier; the class is whether the first token is in the upper half of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(count):
        tokens = torch.randint(1, VOCABULARY, (LENGTH,), generator=generator)
        label = int(tokens[0] >= VOCABULARY // 2)
        samples.append({"input_ids": tokens.tolist(), "labels": label, "domain": DOMAINS[number % 3], "id": number})
    return samples


def texts(count, *, seed=0):
    """Samples for the language model, of several lengths; the first tokens are a prompt, which has no target."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(count):
        length = int(torch.randint(5, LENGTH + 1, (1,), generator=generator))
        tokens = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
        samples.append({"input_ids": tokens, "labels": [-100, -100, *tokens[2:]], "domain": DOMAINS[number % 3]})
    return samples


def pad(samples):
    """Collate texts of several lengths."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    tokens = torch.full((len(samples), longest), PAD)
    mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        tokens[row, :length] = torch.tensor(sample["input_ids"])
        labels[row, :length] = torch.tensor(sample["labels"])
        mask[row, :length] = 1
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def arguments(folder, **settings):
    """Settings without reports, progress bars or dropped samples."""
    defaults = {
        "per_device_train_batch_size": 12,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(output_dir=str(folder), **(defaults | settings))
