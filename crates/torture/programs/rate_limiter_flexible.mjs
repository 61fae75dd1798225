// The package `rate-limiter-flexible` from npm as a contestant: its fixed window on Redis.

import { createInterface } from "node:readline";
import { createRequire } from "node:module";

// The packages of package-lock.json are where the program is started, or above it.
const require = createRequire(`${process.env.NODE_MODULES ?? process.cwd()}/`);
const { Redis } = require("ioredis");
const { RateLimiterRedis, RateLimiterRes } = require("rate-limiter-flexible");

const say = (line) => process.stdout.write(`${line}\n`);

// Increments are atomic, and `msBeforeNext` is when the next action can be done, by its docs.
say(
  "contestant rate-limiter-flexible 11.4.0 fixed-from-request window=1000 resolution=1 offers=redis,costs,refunds,waits " +
    "promises=threads,processes,edges,costs,waits",
);

let limiter;

function setUp([limit, window, redis]) {
  // Nothing is sent again after a connection was lost, and nothing waits for a server that is away.
  const client = new Redis(redis, {
    autoResendUnfulfilledCommands: false,
    commandTimeout: 1000,
    maxRetriesPerRequest: 0,
    retryStrategy: () => 20,
  });
  client.on("error", () => {});
  const [points, duration] = [Number(limit), Number(window) / 1e6];
  limiter = new RateLimiterRedis({ storeClient: client, points, duration, rejectIfRedisNotReady: true });
  return new Promise((ready) => client.once("ready", () => ready("done")));
}

async function check([key, cost]) {
  try {
    await limiter.consume(key, Number(cost));
    return "admitted 0";
  } catch (refusal) {
    if (refusal instanceof RateLimiterRes) return `refused ${refusal.msBeforeNext * 1000}`;
    throw refusal;
  }
}

async function refund([key, , units]) {
  await limiter.reward(key, Number(units));
  return "done";
}

const requests = { setup: setUp, check, refund };

createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const [id, request, ...words] = line.trimEnd().split(" ");
    try {
      say(`${id} ${await requests[request](words)}`);
    } catch (error) {
      say(`${id} failed ${error.message}`);
    }
  })
  .on("close", () => process.exit(0));
