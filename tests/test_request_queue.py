"""RequestQueue: order, removal from the middle, and a heap that does not grow with the dead."""

import random

import pytest

from minivllm.policy import fcfs, sjf
from minivllm.request import Request, RequestStatus
from minivllm.request_queue import RequestQueue
from minivllm.sampling_params import SamplingParams


def waiting(arrival: int, preempted: bool = False, length: int = 1) -> Request:
    request = Request(str(arrival), [1] * length, SamplingParams(), block_size=4)
    request.arrival = arrival
    request.status = RequestStatus.PREEMPTED if preempted else RequestStatus.WAITING
    return request


def queue_of(*requests: Request, policy=fcfs) -> RequestQueue:
    queue = RequestQueue(policy)
    for request in requests:
        queue.push(request)
    return queue


def names(queue: RequestQueue) -> list[str]:
    return [request.request_id for request in queue]


def test_the_order_is_the_policys():
    requests = [waiting(2), waiting(0), waiting(1)]
    assert names(queue_of(*requests)) == ["0", "1", "2"]
    longest_first = queue_of(*requests, policy=lambda request: -request.arrival)
    assert names(longest_first) == ["2", "1", "0"]


def test_equals_stand_in_the_order_of_their_arrival():
    queue = queue_of(waiting(3), waiting(1), waiting(2), policy=lambda request: 0)
    assert names(queue) == ["1", "2", "3"]


def test_d20_the_preempted_stand_before_all_who_have_not_run():
    """A preempted request once queued up behind newcomers and lost its place. Preempted ones come
    first, in the order of the policy among themselves: here the newcomer is the shortest job."""
    old, older = waiting(8, preempted=True, length=90), waiting(2, preempted=True, length=80)
    queue = queue_of(waiting(1), old, older, policy=sjf)
    assert names(queue) == ["2", "8", "1"]


def test_pop_takes_the_first_and_peek_leaves_it():
    queue = queue_of(waiting(1), waiting(0))
    assert queue.peek().request_id == "0" and len(queue) == 2
    assert [queue.pop().request_id, queue.pop().request_id] == ["0", "1"]
    assert queue.peek() is None and len(queue) == 0
    with pytest.raises(IndexError, match="pop from an empty RequestQueue"):
        queue.pop()


def test_d21_taking_one_out_of_the_middle_keeps_the_others_order():
    """Requests that could not be served for the moment were put back at the front, out of order.
    Of 1, 2, 3 and 4 the second leaves and comes back: it has its old rank."""
    requests = [waiting(i) for i in (1, 2, 3, 4)]
    queue = queue_of(*requests)
    queue.remove(requests[1])
    assert names(queue) == ["1", "3", "4"] and requests[1] not in queue
    queue.push(requests[1])
    assert names(queue) == ["1", "2", "3", "4"] and requests[1] in queue
    queue.pop()
    queue.push(requests[0])
    assert queue.peek() is requests[0]


def test_removing_who_does_not_wait_is_an_error():
    queue = queue_of(waiting(1))
    with pytest.raises(KeyError):
        queue.remove(waiting(1))
    assert len(queue) == 1


def test_a_removed_first_is_not_served():
    first, second = waiting(0), waiting(1)
    queue = queue_of(first, second)
    queue.remove(first)
    assert queue.peek() is second


def test_random_operations_against_a_sorted_list():
    """Pushes, pops and removals; the heap never holds more than twice the living, and nothing of
    those who have left."""
    rng = random.Random(1)
    queue, model = RequestQueue(fcfs), []
    for arrival in range(3000):
        if rng.random() < 0.55:
            request = waiting(arrival, preempted=rng.random() < 0.3)
            queue.push(request)
            model.append(request)
        elif model:
            model.sort(key=lambda r: (r.status is RequestStatus.WAITING, r.arrival))
            leaver = model.pop(rng.choice([0, rng.randrange(len(model))]))
            if queue.peek() is leaver and rng.random() < 0.5:
                assert queue.pop() is leaver
            else:
                queue.remove(leaver)
        assert len(queue) == len(model)
        assert len(queue._heap) <= 2 * len(queue)
    model.sort(key=lambda r: (r.status is RequestStatus.WAITING, r.arrival))
    assert list(queue) == model
    assert [queue.pop() for _ in model] == model
    assert queue._heap == [] and queue._entry_of == {}
