"""The executor of our nodes: everything that rclpy's does, and messages for a fraction of the time."""
# pyright: reportOptionalMemberAccess=false, reportArgumentType=false

import contextlib
import gc
import time

import pytest
import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import MessageInfo
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
