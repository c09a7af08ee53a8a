# SPDX-License-Identifier: Apache-2.0
"""What ElementDP keeps of the elements it is given: the sentence, and what it cost to make them."""

import dataclasses
import json

import dp_accounting
import numpy as np
import pytest

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import ElementDP, ItemDP, algorithm_from_config
from tf_subjectdp.algorithms.element_source import ElementSource
from tf_subjectdp.elements import (
    Elements,
    FunctionElements,
    HashElements,
    KMeansElements,
    url_domain,
)

X = np.random.default_rng(0).normal(size=(60, 2))
UNITS = ("subject", "element", "item")


def paid(noise_multiplier=3.0, iterations=4, seed=None):
    return KMeansElements(3).fit_private(
        X,
        np.arange(60) // 3,
        noise_multiplier=noise_multiplier,
        radius=2.0,
        iterations=iterations,
        seed=seed,
    )


def again(algorithm):
    return algorithm_from_config(json.loads(json.dumps(algorithm.get_config())))


def test_the_cost_of_a_private_fit_is_kept_for_each_unit_and_survives_json():
    elements = paid()
    algorithm = ElementDP(0.5, max_elements=2, elements=elements)
    for one in (algorithm, again(algorithm), dataclasses.replace(again(algorithm), clip_norm=0.5)):
        assert one == algorithm and hash(one) == hash(algorithm)
        assert one.event_before("subject") == elements.event
        # Items too: one that changes is a change of the subject's data.
        assert one.event_before("element") == one.event_before("item") == elements.element_event
        assert one.unpaid() == []
        assert elements.provenance in one.sources()[0]


@pytest.mark.parametrize("options", [{"seed": 3}, {"noise_multiplier": 0.0}])
def test_a_fit_that_is_not_private_costs_infinitely_much_after_json_too(options):
    algorithm = again(ElementDP(0.5, elements=paid(**options)))
    for unit in UNITS:
        assert accounting.epsilon(algorithm.event_before(unit), delta=1e-5) == np.inf


@pytest.mark.parametrize(
    "elements",
    [
        HashElements(7),
        FunctionElements(url_domain),
        KMeansElements(3).fit(X, public=True, seed=0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_public_elements_cost_nothing_and_leave_nothing_open(elements):
    algorithm = ElementDP(0.5, elements=elements)
    for one in (algorithm, again(algorithm)):
        assert one == algorithm and elements.provenance in one.sources()[0]
        assert [one.event_before(unit) for unit in UNITS] == [None] * 3
        assert one.unpaid() == []


@pytest.mark.parametrize("elements", [None, "Topics that the hospital assigns."])
def test_of_the_users_word_the_cost_is_not_known(elements):
    algorithm = ElementDP(0.5, elements=elements)
    # As in configs of before: a sentence alone.
    assert algorithm.get_config()["elements"] == elements
    assert again(algorithm) == algorithm
    assert algorithm.unpaid() == [
        "the cost of making the elements, if they were made from the data"
    ]
    assert algorithm.event_before("element") is None


def test_other_algorithms_take_nothing_as_given():
    assert ItemDP(1.0).sources() == ItemDP(1.0).unpaid() == []
    assert ItemDP(1.0).event_before("item") is None


def test_an_object_that_is_no_map_of_this_library_may_have_cost_something():
    class Told:
        provenance = "Clusters of last year's data."

    assert ElementDP(0.5, elements=Told()).unpaid()


def test_a_map_of_ones_own_is_free_only_if_it_says_so():
    class Coarse(Elements):
        """Hands on what another map says, and not what it cost."""

        def __init__(self, inner):
            self.inner = inner
            self.provenance_ = inner.provenance

        def element_ids(self, values):
            return self.inner.element_ids(values) // 2

        @property
        def provenance(self):
            return self.provenance_

    class Public(Coarse):
        costs_nothing = True

    class Half(Coarse):
        event = accounting.subject_event(1.0, 2.0)

    assert ElementDP(0.5, elements=Coarse(paid())).unpaid()
    assert not ElementDP(0.5, elements=Public(HashElements(4))).unpaid()
    with pytest.raises(ValueError, match="one of event and element_event is missing"):
        ElementDP(0.5, elements=Half(paid()))


def test_costs_that_cannot_be_composed_are_refused_at_once():
    event = dp_accounting.ZCDpEvent(0.1)
    with pytest.raises(ValueError, match="cannot be composed with a training's"):
        ElementSource("Clusters.", event, event)
    listed = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(3.0, [0.0, 1.0], [0.5, 0.5])
    with pytest.raises(TypeError, match="make events of tuples"):
        ElementSource("Clusters.", listed, listed)


def test_what_is_no_source_is_refused():
    event = accounting.subject_event(1.0, 2.0)
    config = ElementDP(0.5, elements=paid()).get_config()
    for wrong, error, match in (
        (3, TypeError, "elements=3 must be an object of tf_subjectdp.elements"),
        (KMeansElements(3), ValueError, "not fitted"),
        ({"provenance": "x"}, ValueError, "is no config of elements"),
        ({**config["elements"], "event": {"kind": "Free"}}, ValueError, "unknown event 'Free'"),
        ({**config["elements"], "event": None}, ValueError, "one of event and element_event"),
        (
            {**config["elements"], "provenance": None},
            TypeError,
            "must be a sentence and two events",
        ),
    ):
        with pytest.raises(error, match=match):
            ElementDP(0.5, elements=wrong)
    with pytest.raises(TypeError, match="must be a sentence and two events"):
        ElementSource("x", event, 2.0)
