"""Little releases of all kinds, and what people say of them."""

import numpy as np

import sfumato as sf
from sfumato.solvers.network.settings import Training

PEOPLE = {
    "url_slug": "ratings-of-a-library",
    "name": "Ratings of a library",
    "data_curators": [{"data_curator_name": "The library", "data_curator_type": "Nonprofit"}],
    "contact": "the reading room, reading@library.example",
    "intended_use": "To suggest books.",
    "data_product_region": "Europe",
    "data_product_sector": "Education",
    "publication_date": "2026-03-31",
    "registry_authors": ["A. Reader"],
    "number_of_privacy_units": 700,
    "actors": "Readers see predictions of their own.",
    "release_plans": "None.",
    "data_source_type": "Static",
    "preparation": "Nothing was looked at.",
    "security": "One librarian has access.",
    "collection": "With consent, at the desk.",
    "justification": "A board decided.",
    "utility": "As good as a constant at least.",
    "additional_information": "None.",
    "evidence_sources": {
        "report": {
            "evidence_source_type": "Other public source",
            "misc": {"title": "A report", "year": 2026},
        }
    },
}


def ratings(second="item", size=6):
    g = np.random.default_rng(0)
    cells = np.stack(np.unravel_index(g.choice(30 * size, 90, False), (30, size)))
    modes = (sf.Mode("user", 30), sf.Mode(second, size))
    return sf.SparseTensor(cells, g.integers(1, 6, 90).astype(float), modes, (1, 5))


def entry(folder):
    public = sf.Public(labels=True, entries=100)
    sf.CP(2, privacy=sf.Privacy(1.0, 1e-6, unit="entry", local=None, public=public)).fit(ratings()).save(
        folder
    )


def joint(folder):
    public = sf.Public(labels={"item": range(6)}, units=40, entries=100)
    sf.CP(2, privacy=sf.Privacy(1.0, 1e-6, unit="user", public=public)).fit(ratings()).save(folder)


def coupled(folder):
    tensors = {"ratings": ratings(), "tags": ratings("tag", 5)}
    public = sf.Public(labels={"item": range(6), "tag": range(5)}, units=40)
    sf.Coupled(privacy=sf.Privacy(1.0, 1e-6, unit="user", public=public)).fit(tensors).save(folder)


def power(folder):
    privacy = sf.Privacy(5.0, 1e-5, unit=sf.TensorEntry(0.01))
    tensor = np.einsum("i,j,k->ijk", *[np.eye(4)[0]] * 3)
    sf.PowerMethod(1, privacy=privacy).fit(tensor).save(folder)


def network(folder):
    g = np.random.default_rng(0)
    shown = g.uniform(0, 1, (60, 2))
    privacy = sf.Privacy(5.0, 1e-5, unit="example", public=sf.Public(entries=60))
    short = Training(0.5, 4, 0.3, 0.5, centre=1.0)
    model = sf.PrivateClassifier(privacy=privacy, classes=[0, 1], bounds=(0, 1), training=short)
    model.fit(shown, (shown[:, 0] > 0.5).astype(int)).save(folder)


def local(folder):
    """A model of values that were privatised before they left."""
    sf.CP(1).fit(sf.privatise(ratings(size=4), epsilon=3)).release(folder)


KINDS = {
    "entry": entry,
    "joint": joint,
    "coupled": coupled,
    "power": power,
    "network": network,
    "local": local,
}
