package interop;

import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The suite's own few words on the wire: LOCK commands over RESP2, a connection each, and the control port. */
final class Wire {
    private Wire() {
    }

    static String host(String address) {
        return address.substring(0, address.lastIndexOf(':'));
    }

    static int port(String address) {
        return Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
    }

    static Object ask(String address, String... words) throws IOException {
        try (Socket socket = new Socket(host(address), port(address))) {
            socket.setSoTimeout(10_000);
            StringBuilder request = new StringBuilder("*" + words.length + "\r\n");
            for (String word : words) {
                request.append('$').append(word.getBytes(StandardCharsets.UTF_8).length).append("\r\n").append(word).append("\r\n");
            }
            socket.getOutputStream().write(request.toString().getBytes(StandardCharsets.UTF_8));
            return reply(new DataInputStream(socket.getInputStream()));
        }
    }

    private static Object reply(DataInputStream in) throws IOException {
        String head = line(in);
        String rest = head.substring(1);
        switch (head.charAt(0)) {
            case '+':
                return rest;
            case ':':
                return Long.parseLong(rest);
            case '-':
                throw new IOException(rest);
            case '$':
                if (rest.equals("-1")) {
                    return null;
                }
                byte[] bytes = new byte[Integer.parseInt(rest)];
                in.readFully(bytes);
                line(in);
                return new String(bytes, StandardCharsets.UTF_8);
            case '*':
                if (rest.equals("-1")) {
                    return null;
                }
                List<Object> items = new ArrayList<>();
                for (int i = Integer.parseInt(rest); i > 0; i--) {
                    items.add(reply(in));
                }
                return items;
            default:
                throw new IOException("a reply of unknown kind: " + head);
        }
    }

    private static String line(InputStream in) throws IOException {
        StringBuilder text = new StringBuilder();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new EOFException("the connection ended within a reply");
            }
            if (c != '\r') {
                text.append((char) c);
            }
        }
        return text.toString();
    }

    static Map<String, Object> pairs(Object reply) {
        List<?> flat = (List<?>) reply;
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < flat.size(); i += 2) {
            map.put((String) flat.get(i), flat.get(i + 1));
        }
        return map;
    }

    /** One order to the driver's control port, see ../README.md. */
    static List<String> control(String address, String order) throws IOException {
        try (Socket socket = new Socket(host(address), port(address))) {
            socket.setSoTimeout(40_000);
            socket.getOutputStream().write((order + "\n").getBytes(StandardCharsets.UTF_8));
            String answer = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8)).readLine();
            if (answer == null || !answer.startsWith("ok")) {
                throw new IOException(order + ": " + answer);
            }
            List<String> words = new ArrayList<>(List.of(answer.split(" ")));
            words.remove(0);
            return words;
        }
    }
}
