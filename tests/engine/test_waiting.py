import pytest

from mlxserve.engine.sequence import RequestState, Sequence, make_choices
from mlxserve.engine.waiting import AGING_S, POLICIES, WaitingQueue
from tests.engine.support import request


def waiting(number: int, *, priority: int = 0, arrival_s: float = 0.0) -> Sequence:
    state = RequestState(request(f"r{number}", priority=priority), arrival_s)
    return make_choices(state, first_number=number, limit=100, stop_ids=frozenset())[0]


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while queue:
        seq = queue.head()
        assert queue.remove(seq)
        order.append(seq.number)
    return order


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_requests_are_served_in_order_of_arrival(policy):
    queue = WaitingQueue(POLICIES[policy])
    for i in (0, 1, 2):
        queue.push(waiting(i, arrival_s=i / 10))
    assert drain(queue) == [0, 1, 2]


def test_fifo_ignores_priority():
    queue = WaitingQueue(POLICIES["fifo"])
    queue.push(waiting(0, priority=5))
    queue.push(waiting(1, priority=-5))
    assert drain(queue) == [0, 1]


def test_priority_goes_first_but_waiting_outweighs_it():
    queue = WaitingQueue(POLICIES["priority"])
    queue.push(waiting(0, priority=1, arrival_s=0.0))
    queue.push(waiting(1, priority=0, arrival_s=AGING_S - 1))
    queue.push(waiting(2, priority=0, arrival_s=AGING_S + 1))
    assert drain(queue) == [1, 0, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_preempted_come_first_the_oldest_of_them_at_the_front(policy):
    queue = WaitingQueue(POLICIES[policy])
    queue.push(waiting(9, priority=-9))
    queue.push(waiting(3), front=True)  # the newest is preempted first
    queue.push(waiting(2), front=True)
    assert drain(queue) == [2, 3, 9]


def test_removing_from_the_middle():
    queue = WaitingQueue(POLICIES["fifo"])
    seqs = [waiting(i) for i in range(4)]
    for seq in seqs:
        queue.push(seq)
    assert queue.remove(seqs[2])
    assert not queue.remove(seqs[2])
    assert [s.number for s in queue.first(2)] == [0, 1]
    assert drain(queue) == [0, 1, 3]
