"""An A2A agent whose tasks stop when their caller does.

    uvicorn a2a_agent:app

A client's deadline reaches the task, ``tasks/cancel`` stops the model call it makes,
and so does a stream that nobody reads any more. With ``on_disconnect="finish"`` a task
would go on without its reader, who may subscribe to it again.
"""

from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Part,
    Task,
    TaskState,
    TaskStatus,
)
from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from starlette.applications import Starlette

import hangup
from hangup.servers.a2a import protect

hangup.instrument()
OpenAIInstrumentor().instrument()

model = AsyncOpenAI(max_retries=1)


class Researcher(AgentExecutor):
    async def execute(self, context, event_queue):
        ids = {"task_id": context.task_id, "context_id": context.context_id}
        working = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        await event_queue.enqueue_event(
            Task(id=context.task_id, context_id=context.context_id, status=working)
        )
        answer = await model.chat.completions.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": context.get_user_input()}],
        )
        updater = TaskUpdater(event_queue, **ids)
        await updater.add_artifact([Part(text=answer.choices[0].message.content)])
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


card = AgentCard(
    name="researcher",
    description="Finds out about a topic.",
    version="1",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text"],
    default_output_modes=["text"],
    supported_interfaces=[
        AgentInterface(
            url="http://127.0.0.1:8000/",
            protocol_binding="JSONRPC",
            protocol_version="1.0",
        )
    ],
    skills=[
        AgentSkill(id="r", name="research", description="Research.", tags=["research"])
    ],
)
handler = DefaultRequestHandler(
    protect(Researcher(), budget=120), InMemoryTaskStore(), card
)
app = Starlette(
    routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
)
