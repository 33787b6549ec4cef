"""The client of a kernel, whose other end is here a socket in the same process."""

from __future__ import annotations

import asyncio
import select
import time
from pathlib import Path

import zmq.asyncio
from jupyter_client.session import Session

from lab.report.client import Channel


def test_an_answer_that_arrives_just_before_a_message_is_sent_is_noticed(tmp_path: Path) -> None:
    async def answer() -> str:
        session, address = Session(key=b""), f"ipc://{tmp_path}/kernel"
        with (
            zmq.asyncio.Context() as context,
            context.socket(zmq.DEALER) as ours,
            zmq.Context() as other,
            other.socket(zmq.ROUTER) as kernel,
        ):
            kernel.bind(address)
            ours.connect(address)
            channel = Channel(ours, session)
            channel.send(session.msg("execute_request"))
            client, *_ = kernel.recv_multipart()
            waiting = asyncio.ensure_future(channel.get_msg())
            await asyncio.sleep(0)
            session.send(kernel, "execute_reply", ident=client)
            select.select([ours.get(zmq.FD)], [], [])
            time.sleep(0.1)  # without a pause, ZeroMQ does not look for messages while it sends
            channel.send(session.msg("comm_msg"))
            message = await waiting
            return str(message["msg_type"])

    assert asyncio.run(answer()) == "execute_reply"
