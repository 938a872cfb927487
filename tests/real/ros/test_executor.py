"""The executor of our nodes: everything that rclpy's does, and messages for a fraction of the time."""
# pyright: reportOptionalMemberAccess=false, reportArgumentType=false

import contextlib
import gc
import threading
import time

import pytest
import rclpy
from rclpy.action.client import ActionClient
from rclpy.action.server import ActionServer, CancelResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile, qos_profile_services_default
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import MessageInfo
from rclpy.task import Future
from rclpy.waitable import NumberOfEntities, Waitable
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64
from std_srvs.srv import Trigger

from robot_rl.real.ros.executor import TopicExecutor

pytestmark = pytest.mark.ros


@pytest.fixture
def context():
    made = rclpy.Context()
    rclpy.init(context=made, signal_handler_options=SignalHandlerOptions.NO)
    yield made
    rclpy.try_shutdown(context=made)


@contextlib.contextmanager
def hearing(context, kind=TopicExecutor, name="hears"):
    node, executor = Node(name, context=context), kind(context=context)
    executor.add_node(node)
    try:
        yield node, executor
    finally:
        executor.shutdown(1.0)
        node.destroy_node()


def spin(executor, until, limit=10.0):
    end = time.monotonic() + limit
    while not until():
        assert time.monotonic() < end, "nothing came"
        executor.spin_once(0.05)


def test_messages_come_once_each_in_order_with_their_publisher_where_it_is_asked(context):
    with hearing(context) as (node, executor):
        heard, informed = [], []

        def with_information(message: Float64, info: MessageInfo) -> None:
            informed.append((message.data, info["source_timestamp"]))

        node.create_subscription(Float64, "value", lambda message: heard.append(message.data), 20)
        node.create_subscription(Float64, "value", with_information, 20)
        publisher = node.create_publisher(Float64, "value", 20)
        spin(executor, lambda: publisher.get_subscription_count() == 2)
        for value in range(10):
            publisher.publish(Float64(data=float(value)))
        spin(executor, lambda: len(heard) == len(informed) == 10)
        executor.spin_once(0.05)
    assert heard == [value for value, _ in informed] == list(range(10))
    assert all(stamp > 0 for _, stamp in informed)


def test_topics_that_come_and_go_are_noticed_at_once(context):
    with hearing(context) as (node, executor):
        publisher, heard = node.create_publisher(Float64, "value", 20), []
        spin(executor, lambda: executor.spin_once(0.0) is None)
        topic = node.create_subscription(Float64, "value", heard.append, 20)
        spin(executor, lambda: publisher.get_subscription_count() == 1)
        publisher.publish(Float64())
        spin(executor, lambda: len(heard) == 1)
        node.destroy_subscription(topic)
        spin(executor, lambda: publisher.get_subscription_count() == 0)
        publisher.publish(Float64())
        for _ in range(4):
            executor.spin_once(0.05)
    assert len(heard) == 1


def test_a_callback_may_destroy_the_topic_that_is_next(context):
    with hearing(context) as (node, executor):
        heard, topics = [], []

        def end_the_others(message):
            heard.append(message.data)
            while topics:
                node.destroy_subscription(topics.pop())

        topics += [node.create_subscription(Float64, "value", end_the_others, 20) for _ in range(3)]
        publisher = node.create_publisher(Float64, "value", 20)
        spin(executor, lambda: publisher.get_subscription_count() == 3)
        publisher.publish(Float64(data=1.0))
        spin(executor, lambda: publisher.get_subscription_count() == 0)
    assert heard == [1.0]


def test_timers_services_and_events_work_beside_a_flood_of_messages(context):
    with hearing(context) as (node, executor), hearing(context, name="floods") as (other, _):
        ticks, answers, matches, heard = [], [], [], []
        node.create_timer(0.02, lambda: ticks.append(time.monotonic()))

        def answer(_, response):
            answers.append(1)
            return response

        node.create_service(Trigger, "ask", answer)
        node.create_subscription(Float64, "value", heard.append, 5)
        events = PublisherEventCallbacks(matched=matches.append)
        publisher = node.create_publisher(Float64, "value", QoSProfile(depth=5), event_callbacks=events)
        client = other.create_client(Trigger, "ask")
        with hearing(context, name="asks") as (_, theirs):
            theirs.add_node(other)
            spin(executor, client.service_is_ready)
            future = client.call_async(Trigger.Request())
            begun = time.monotonic()
            while time.monotonic() < begun + 1.0 or not future.done():
                publisher.publish(Float64())
                executor.spin_once(0.0)
                theirs.spin_once(0.0)
                assert time.monotonic() < begun + 10.0
    assert answers == [1]
    assert matches
    assert len(heard) > 100
    assert 30 <= sum(begun < tick < begun + 1.0 for tick in ticks) <= 51


def test_what_a_callback_raises_comes_out_and_the_others_still_hear(context):
    with hearing(context) as (node, executor):
        heard = []
        node.create_subscription(Float64, "value", lambda message: 1 / 0, 20)
        node.create_subscription(Float64, "value", heard.append, 20)
        publisher = node.create_publisher(Float64, "value", 20)
        spin(executor, lambda: publisher.get_subscription_count() == 2)
        publisher.publish(Float64())
        with pytest.raises(ZeroDivisionError):
            spin(executor, lambda: False)
        spin(executor, lambda: len(heard) == 1)


def test_a_topic_whose_callback_always_raises_does_not_keep_others_from_their_turn(context):
    with hearing(context) as (node, executor):
        heard, ticks = [], []
        node.create_subscription(Float64, "bad", lambda message: 1 / 0, 20)
        node.create_subscription(Float64, "good", heard.append, 20)
        node.create_timer(0.01, lambda: ticks.append(1))
        bad, good = node.create_publisher(Float64, "bad", 20), node.create_publisher(Float64, "good", 20)
        spin(executor, lambda: bad.get_subscription_count() == good.get_subscription_count() == 1)
        ticks.clear()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            good.publish(Float64())
            for _ in range(2):  # faster than they are taken
                bad.publish(Float64())
            with contextlib.suppress(ZeroDivisionError):
                executor.spin_once(0.0)
    assert len(heard) > 20
    assert len(ticks) > 20


def test_it_ends_beside_a_thread_that_spins_and_not_before_its_callback_has(context):
    with hearing(context) as (node, executor):
        began, may_end = threading.Event(), threading.Event()

        def slow(_):
            began.set()
            may_end.wait(10.0)

        node.create_subscription(Float64, "value", slow, 20)
        publisher = node.create_publisher(Float64, "value", 20)
        spin(executor, lambda: publisher.get_subscription_count() == 1)
        spinning = threading.Thread(target=executor.spin)
        spinning.start()
        publisher.publish(Float64())
        assert began.wait(10.0)
        assert not executor.shutdown(0.05)
        may_end.set()
        assert executor.shutdown(10.0)
        spinning.join(10.0)
        assert not spinning.is_alive()
    with hearing(context, name="waits") as (_, executor):
        executor.spin_once(0.0)
        spinning = threading.Thread(target=executor.spin)
        spinning.start()
        time.sleep(0.1)  # it waits, and what it waits for must not be destroyed
        assert executor.shutdown(10.0)
        spinning.join(10.0)
        assert not spinning.is_alive()


class Work(Waitable):
    """What an action's server is to an executor: a service and a topic of its own, and a coroutine that lasts."""

    def __init__(self, node, executor):
        super().__init__(node.default_callback_group)
        self.executor, self.end, self.told = executor, Future(), 0
        with node.handle:
            services = qos_profile_services_default.get_c_qos_profile()
            self.goals = rclpy_implementation.Service(node.handle, Trigger, "goal", services)
            topics = QoSProfile(depth=5).get_c_qos_profile()
            self.cancels = rclpy_implementation.Subscription(node.handle, Float64, "cancel", topics)
        node.add_waitable(self)

    def __enter__(self):
        self.goals.__enter__()
        self.cancels.__enter__()

    def __exit__(self, *error):
        self.goals.__exit__(*error)
        self.cancels.__exit__(*error)

    def get_num_entities(self):
        return NumberOfEntities(num_services=1, num_subs=1)

    def add_to_wait_set(self, wait_set):
        self.places = wait_set.add_service(self.goals), wait_set.add_subscription(self.cancels)

    def is_ready(self, wait_set):
        self.ready = [wait_set.is_ready(*one) for one in zip(("service", "subscription"), self.places, strict=True)]
        return any(self.ready)

    def take_data(self):
        return self.goals.service_take_request(Trigger.Request) if self.ready[0] else None

    async def execute(self, taken_data):
        if taken_data is not None:
            self.end = Future()
            self.executor.create_task(self.work, taken_data[1].request_id)
        elif self.cancels.take_message(Float64, False):
            self.told += 1
            self.end.set_result("cancelled")

    async def work(self, request):
        self.goals.service_send_response(Trigger.Response(message=await self.end), request)


def test_what_actions_are_made_of_is_served_beside_topics(context):
    with hearing(context) as (node, executor), hearing(context, SingleThreadedExecutor, "asks") as (other, theirs):
        heard = []
        work = Work(node, executor)
        node.create_subscription(Float64, "value", heard.append, 20)
        client = other.create_client(Trigger, "goal")
        cancel, value = other.create_publisher(Float64, "cancel", 5), other.create_publisher(Float64, "value", 20)
        spin(executor, lambda: client.service_is_ready() and cancel.get_subscription_count() == 1)
        begun = time.monotonic()
        for count in range(1, 11):
            cancel.publish(Float64())
            spin(executor, lambda count=count: work.told == 2 * count - 1)  # nothing runs
            goal = client.call_async(Trigger.Request())
            spin(executor, lambda: not work.end.done())
            value.publish(Float64())
            spin(executor, lambda count=count: len(heard) == count)  # while the goal runs
            assert not goal.done()
            cancel.publish(Float64())
            spin(executor, lambda goal=goal: theirs.spin_once(0.0) or goal.done())
            assert goal.result().message == "cancelled"
        assert time.monotonic() < begun + 1.5  # at once, and not at the next look at events


def test_an_action_takes_goals_tells_feedback_cancels_and_ends(context):
    """Client and server of rclpy, both on the executor."""
    kind = pytest.importorskip("control_msgs.action", reason="build_control_msgs.py builds it").FollowJointTrajectory
    with hearing(context) as (node, executor):
        feedback, ends = [], []

        async def execute(handle):
            handle.publish_feedback(kind.Feedback(joint_names=["j0"]))
            ends.append(Future())
            how = await ends[-1]
            handle.canceled() if how == "cancel" else handle.succeed()
            return kind.Result(error_string=how)

        def on_cancel(_):
            ends[-1].set_result("cancel")
            return CancelResponse.ACCEPT

        ActionServer(node, kind, "follow", execute, cancel_callback=on_cancel)
        client = ActionClient(node, kind, "follow")
        spin(executor, client.server_is_ready)
        for how, status in (("cancel", 5), ("done", 4)):
            goal = client.send_goal_async(kind.Goal(), feedback.append)
            spin(executor, lambda goal=goal: goal.done() and len(feedback) == len(ends))
            assert goal.result().accepted
            result = goal.result().get_result_async()
            asked = goal.result().cancel_goal_async() if how == "cancel" else ends[-1].set_result(how)
            spin(executor, result.done)
            assert (result.result().status, result.result().result.error_string) == (status, how)
            if asked is not None:
                spin(executor, asked.done)
    assert len(feedback) == len(ends) == 2


def test_a_coroutine_of_a_service_waits_for_another_answer_without_deafness_afterwards(context):
    with hearing(context) as (node, executor):
        heard = []
        group = ReentrantCallbackGroup()
        inner = node.create_client(Trigger, "inner", callback_group=group)

        async def outer(_, response):
            response.message = (await inner.call_async(Trigger.Request())).message
            return response

        def answer(_, response):
            response.message = "from within"
            return response

        node.create_service(Trigger, "inner", answer, callback_group=group)
        node.create_service(Trigger, "outer", outer)
        client = node.create_client(Trigger, "outer", callback_group=group)
        node.create_subscription(Float64, "value", heard.append, 20)
        publisher = node.create_publisher(Float64, "value", 20)
        spin(executor, lambda: client.service_is_ready() and inner.service_is_ready())
        future = client.call_async(Trigger.Request())
        spin(executor, future.done)
        assert future.result().message == "from within"
        publisher.publish(Float64())
        spin(executor, lambda: len(heard) == 1)


def test_the_end_of_the_context_is_told(context):
    with hearing(context) as (_, executor):
        executor.spin_once(0.0)
        rclpy.shutdown(context=context)
        with pytest.raises(ExternalShutdownException):
            executor.spin_once(0.0)


def test_a_message_costs_less_than_half_of_rclpys_own(context):
    with (
        hearing(context) as (ours, ours_executor),
        hearing(context, SingleThreadedExecutor, "theirs") as (theirs, other),
    ):
        names = [f"joint_{index}" for index in range(7)]
        message = JointState(name=names, position=[0.0] * 7, velocity=[0.0] * 7)
        spent = {ours: 0.0, theirs: 0.0}
        publisher, heard = ours.create_publisher(JointState, "joints", 20), []
        for node in spent:
            for index in range(9):  # a supervisor's
                node.create_subscription(Float64, f"other_{index}", heard.append, 5)
            node.create_subscription(JointState, "joints", heard.append, 20)
        spin(ours_executor, lambda: publisher.get_subscription_count() == 2)
        gc.collect()
        for _ in range(200):
            publisher.publish(message)
            for node, executor in ((ours, ours_executor), (theirs, other)):
                begun, before = time.thread_time(), len(heard)
                spin(executor, lambda before=before: len(heard) > before)
                spent[node] += time.thread_time() - begun
    assert spent[ours] < 0.5 * spent[theirs], spent
