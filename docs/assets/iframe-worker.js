// Browsers start no workers for pages from a disk. There the search runs in a hidden frame instead,
// which answers to what a worker would answer to.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      this.frame = inside;
      this.loaded = new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = address;
        script.onload = done;
        script.onerror = failed;
        inside.document.body.append(script);
      });
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.dispatchEvent(new MessageEvent("message", {data}));
    }
  };
}
