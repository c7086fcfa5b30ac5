/* The search runs in a Worker, which browsers refuse to pages opened from the disk. There, a hidden frame takes its
   place: the same script, the same messages. */
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.room = frame.contentWindow;
      this.room.postMessage = (data) => this.tell(data);
      const script = this.room.document.createElement("script");
      script.src = new URL(address, location).href;
      script.onload = () => {
        for (const data of this.waiting) this.send(data);
        this.waiting = null;
      };
      this.room.document.documentElement.appendChild(script);
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }
    send(data) {
      this.room.dispatchEvent(new this.room.MessageEvent("message", { data }));
    }
    tell(data) {
      const message = new MessageEvent("message", { data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    }
    terminate() {}
  };
}
