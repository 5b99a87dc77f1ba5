"""The domain column: names or numbers, in any collator, and messages where it is wrong."""

import pytest
import torch

pytest.importorskip("transformers")

import steelyard as sy
from steelyard.integrations.transformers import DomainCollator, DomainTrainer, model_loss
from tiny_transformers import DOMAINS, arguments, encoder, labelled


def train(samples, folder, *, column="domain", settings=None, collator=None):
    balancer = sy.Balancer(DOMAINS, objective=model_loss, weighting=sy.Fixed())
    args = arguments(folder, max_steps=1, **(settings or {}))
    trainer = DomainTrainer(
        encoder(), args, train_dataset=samples, data_collator=collator, balancer=balancer, domain_column=column
    )
    trainer.train()
    return balancer


def with_domains(make_label):
    return [sample | {"domain": make_label(DOMAINS.index(sample["domain"]))} for sample in labelled(12)]


@pytest.mark.parametrize(
    "make_label",
    [lambda number: DOMAINS[number], int, torch.tensor, lambda number: torch.tensor(number).numpy()[()]],
    ids=["name", "int", "tensor", "numpy"],
)
@pytest.mark.parametrize("remove", [True, False])
def test_names_and_numbers(tmp_path, make_label, remove):
    samples = with_domains(make_label)
    if not remove:
        samples = [{key: value for key, value in sample.items() if key != "id"} for sample in samples]
    balancer = train(samples, tmp_path, settings={"remove_unused_columns": remove})
    assert set(balancer.last.losses) == set(DOMAINS)


def test_another_column(tmp_path):
    samples = [{**sample, "kind": sample["domain"], "domain": "a column of another meaning"} for sample in labelled(12)]
    assert set(train(samples, tmp_path, column="kind").last.losses) == set(DOMAINS)


def test_loading_in_other_processes(tmp_path):
    settings = {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "fork"}
    assert set(train(labelled(12), tmp_path, settings=settings).last.losses) == set(DOMAINS)


def test_a_missing_column_is_named_with_those_that_exist(tmp_path):
    message = r"lack the column 'kind', .* they have the columns \['input_ids', 'labels', 'domain', 'id'\]"
    with pytest.raises(ValueError, match=message):
        train(labelled(12), tmp_path, column="kind")


class Columns(torch.utils.data.Dataset):
    """Columns with names, as a `datasets.Dataset` has them."""

    column_names = ("input_ids", "labels", "source")

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return {"input_ids": [1, 2, 3], "labels": 0, "source": "news"}


def test_a_missing_column_of_a_dataset_that_names_its_columns(tmp_path):
    with pytest.raises(ValueError, match=r"they have the columns \['input_ids', 'labels', 'source'\]"):
        train(Columns(), tmp_path)
    assert set(train(Columns(), tmp_path, column="source").last.losses) == {"news"}


@pytest.mark.parametrize("label", ["sport", 3, -1, None, 0.5])
def test_an_unknown_domain_is_named(tmp_path, label):
    samples = [sample | {"domain": label} for sample in labelled(12)]
    with pytest.raises(ValueError, match=rf"'domain' must hold .*one of \('news', 'chat', 'law'\).*; got {label!r}"):
        train(samples, tmp_path)


def test_the_column_is_kept_among_those_of_the_model(tmp_path):
    """As a `datasets.Dataset` needs it, whose other columns are removed before the collator sees them."""
    balancer = sy.Balancer(DOMAINS, objective=model_loss, weighting=sy.Fixed())
    trainer = DomainTrainer(encoder(), arguments(tmp_path), balancer=balancer)
    trainer._set_signature_columns_if_needed()
    assert {"input_ids", "labels", "domain"} <= set(trainer._signature_columns)
    assert trainer._signature_columns.count("domain") == 1


def test_collators_that_fail_at_strings_never_see_the_column():
    seen = []

    def collate(samples):
        seen.extend(samples)
        return {"x": torch.stack([sample["x"] for sample in samples])}

    samples = [{"x": torch.ones(2), "domain": "law"}, {"x": torch.zeros(2), "domain": "news"}]
    batch = DomainCollator(collate, "domain", DOMAINS)(samples)
    assert batch["domain"].tolist() == [2, 0]
    assert [set(sample) for sample in seen] == [{"x"}, {"x"}]
    assert set(samples[0]) == {"x", "domain"}  # the dataset's own samples are not changed


def test_the_tokenizer_of_a_collator_can_be_reached():
    class Collator:
        tokenizer = "one"

        def __call__(self, samples):
            return {}

    assert DomainCollator(Collator(), "domain", DOMAINS).tokenizer == "one"
    assert DomainCollator(list, "domain", DOMAINS).tokenizer is None
