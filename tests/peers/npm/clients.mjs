// Asks each URL of a list with a client, as JSON: [{"client": "got", "url": "http://…"}, …] on standard
// input, and writes what came of each, in the same order, to standard output. Each client decides on its
// own whether it asks again, and after how long.
import { text } from "node:stream/consumers";
import { Octokit } from "@octokit/core";
import { retry } from "@octokit/plugin-retry";
import { throttling } from "@octokit/plugin-throttling";
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import ky from "ky";
import { parseRateLimit } from "ratelimit-header-parser";

const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const RETRIES = 3;

const clients = {
  "plugin-throttling": async (url) => {
    const again = (_seconds, _options, _octokit, count) => count < RETRIES;
    const Client = Octokit.plugin(throttling);
    const throttle = { id: url, onRateLimit: again, onSecondaryRateLimit: again };
    return (await new Client({ log: quiet, throttle }).request(`GET ${url}`)).status;
  },
  "plugin-retry": async (url) => {
    const Client = Octokit.plugin(retry);
    return (await new Client({ log: quiet }).request(`GET ${url}`)).status;
  },
  got: async (url) => (await got(url, { retry: { limit: RETRIES } })).statusCode,
  ky: async (url) => (await ky(url, { retry: RETRIES })).status,
  // Retries a 429 only if configured, and waits only if it has a delay.
  "axios-retry": async (url) => {
    const client = axios.create();
    const retryCondition = (error) => error.response?.status === 429;
    axiosRetry(client, { retries: RETRIES, retryCondition, retryDelay: axiosRetry.exponentialDelay });
    return (await client.get(url)).status;
  },
  "ratelimit-header-parser": async (url) => {
    const { limit, remaining, reset } = parseRateLimit(await fetch(url)) ?? {};
    return { limit, remaining, seconds: (reset?.getTime() - Date.now()) / 1_000 };
  },
};

async function ask({ client, url }) {
  // Uses up the limit. Before the script started, its window could be nearly over when the client asks.
  await fetch(url);
  try {
    return await clients[client](url);
  } catch (error) {
    return error.response?.status ?? error.status ?? String(error);
  }
}

const asked = JSON.parse(await text(process.stdin));
console.log(JSON.stringify(await Promise.all(asked.map(ask))));
